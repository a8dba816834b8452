#pragma once

#include "api/backend.hpp"
#include "runtime/operator_call.hpp"

namespace packjit::api {

/// Adds a call's sizes and the lengths of its sequences to the file. Waits for what was launched on the lane, since
/// the lengths are read back from the map. Nothing where the stream is being captured, or there are no sequences.
void record_shape(CaptureFile& file, Lane& lane, const CheckedCall& call, const MappedSequences& sequences) noexcept;

}  // namespace packjit::api
