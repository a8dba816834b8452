#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace packjit {

/// NVIDIA's nvdisasm or cuobjdump, found in CUDA_HOME, CUDA_PATH, on PATH or under /usr/local/cuda; none where neither
/// is.
[[nodiscard]] std::optional<std::string> find_disassembler();

/// The SASS of a cubin, as `program` prints it. Throws EnvironmentError when the program cannot be run or fails.
[[nodiscard]] std::string disassemble(const std::string& program, std::string_view cubin);

}  // namespace packjit
