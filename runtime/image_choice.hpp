#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/nvrtc.hpp"

namespace packjit {

/// The number of an architecture, 90 for "sm_90". Throws std::invalid_argument for anything else.
[[nodiscard]] int arch_number(const std::string& arch);

/// The architecture to compile for so that a GPU can run the result: its own where the compiler knows it, else the
/// newest older one (its PTX is translated by the driver). Throws EnvironmentError for a GPU older than all of them.
[[nodiscard]] std::string arch_for_gpu(const std::string& gpu_arch, const std::vector<std::string>& compiler_archs,
                                       const std::string& nvrtc_version);

enum class ImageKind { cubin, ptx };
/// Offers the cubin, then the PTX, to `load`, which returns whether the driver took it and throws for failures that say
/// nothing about the image. The one that was taken; nothing where both are refused.
[[nodiscard]] std::optional<ImageKind> load_first_accepted(const CompileResult& images,
                                                           const std::function<bool(const std::string& image)>& load);

/// The three versions that have to fit together.
struct Versions {
  NvrtcVersion driver;  ///< the CUDA version that the driver supports
  NvrtcVersion nvrtc;
  std::string gpu_name, gpu_arch;
  std::vector<std::string> compiler_archs;
};
/// For images that the driver refused: names all three and says which is behind and what to do.
[[nodiscard]] std::string which_is_behind(const Versions& versions);

}  // namespace packjit
