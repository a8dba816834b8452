#pragma once
// packjit for C++20: packed Mamba operators on a GPU or on the CPU. The one header to include; link packjit::packjit.
//
// Values and handles over the C interface (packjit.h), in headers alone: what crosses into the library is C, so it can
// be built with another compiler or standard library than the program. Nothing throws; calls give a Status or a Result.
// docs/embedding.md has ownership, threads, capture and errors on one page.
//
// The names live in an inline namespace, v1, so that they can never be mistaken for those of the library's own sources.

#include "packjit/device.hpp"
#include "packjit/operators.hpp"
#include "packjit/packing.hpp"
#include "packjit/sequence_map.hpp"
#include "packjit/status.hpp"
