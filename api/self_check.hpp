#pragma once

#include "runtime/cuda_session.hpp"

namespace packjit::api {

/// What makes sure of kernels in a host application: a run against the oracle, remembered by the process and the disk
/// cache. Nothing where PACKJIT_SELF_CHECK is off.
[[nodiscard]] SelfCheck self_check();

}  // namespace packjit::api
