#include "runtime/image_choice.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <stdexcept>
#include <string_view>

#include "runtime/errors.hpp"

namespace packjit {

int arch_number(const std::string& arch) {
  constexpr std::string_view kPrefix = "sm_";
  const std::string_view digits = arch.starts_with(kPrefix) ? std::string_view(arch).substr(kPrefix.size()) : "";
  int number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size() || number < 1) {
    throw std::invalid_argument(fmt::format("architecture '{}': expected the form sm_90", arch));
  }
  return number;
}

std::string arch_for_gpu(const std::string& gpu_arch, const std::vector<std::string>& compiler_archs,
                         const std::string& nvrtc_version) {
  const int gpu = arch_number(gpu_arch);
  int best = 0;
  for (const std::string& arch : compiler_archs) {
    const int number = arch_number(arch);
    if (number <= gpu) best = std::max(best, number);
  }
  if (best == 0) {
    throw EnvironmentError(fmt::format(
        "the GPU ({}) is older than anything NVRTC {} compiles for ({}): use an older NVRTC (CUDA 12 goes down "
        "to sm_50), with PACKJIT_NVRTC set to its path",
        gpu_arch, nvrtc_version, fmt::join(compiler_archs, ", ")));
  }
  return fmt::format("sm_{}", best);
}

std::optional<ImageKind> load_first_accepted(const CompileResult& images,
                                             const std::function<bool(const std::string& image)>& load) {
  if (load(images.cubin)) return ImageKind::cubin;
  if (load(images.ptx)) return ImageKind::ptx;
  return std::nullopt;
}

std::string which_is_behind(const Versions& v) {
  const bool known = std::find(v.compiler_archs.begin(), v.compiler_archs.end(), v.gpu_arch) != v.compiler_archs.end();
  std::string advice;
  if (v.driver < v.nvrtc) {
    advice = fmt::format(
        "The driver is behind: it supports CUDA {}.{}, older than NVRTC. Update the driver, or set PACKJIT_NVRTC to an "
        "NVRTC of CUDA {}.{} or older.",
        v.driver.major, v.driver.minor, v.driver.major, v.driver.minor);
  } else if (!known) {
    advice =
        fmt::format("NVRTC is behind: it does not know {}. Install NVRTC {}.{} or set PACKJIT_NVRTC to a newer one.",
                    v.gpu_arch, v.driver.major, v.driver.minor);
  } else {
    advice = "Neither version is behind; the images may be damaged, or the driver's compiler library may be missing.";
  }
  return fmt::format("driver: CUDA {}.{}; NVRTC: {}.{}; GPU: {} ({}). {}", v.driver.major, v.driver.minor,
                     v.nvrtc.major, v.nvrtc.minor, v.gpu_name, v.gpu_arch, advice);
}

}  // namespace packjit
