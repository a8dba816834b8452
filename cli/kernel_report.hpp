#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "generator/operators.hpp"
#include "runtime/image_info.hpp"
#include "runtime/nvrtc.hpp"
#include "runtime/occupancy.hpp"

namespace packjit {

/// One kernel of a compiled operator with what its launch adds. Sizes in bytes.
struct KernelReport {
  KernelInfo image;
  std::optional<SpillReport> spills;   ///< what the assembler counted; informational
  std::uint32_t block = 0;             ///< threads of the launch; 0 for a kernel that the operator does not launch
  std::int64_t dynamic_shared = 0;     ///< shared memory given at launch
  std::optional<Occupancy> occupancy;  ///< none for architectures whose limits are not known
  [[nodiscard]] std::int64_t shared_bytes() const { return image.shared_bytes + dynamic_shared; }
};

/// An operator compiled for one architecture.
struct OperatorReport {
  std::string arch;
  Config config;
  std::string key;  ///< of the generated source; "edited" for a file
  std::string source;
  CompileResult compiled;
  std::vector<KernelReport> kernels;  ///< in launch order, then the rest
  [[nodiscard]] bool spill_free() const;
};

/// Generates (or takes `edited`), compiles and reads the image. Source that does not compile throws: std::logic_error
/// for generated source, std::invalid_argument for an edited one and
/// for a block that needs more shared memory than the architecture has. Needs NVRTC, no GPU.
[[nodiscard]] OperatorReport report_operator(const Nvrtc& nvrtc, const Spec& spec, const Config& config,
                                             const std::string& arch, const std::optional<std::string>& edited = {});

[[nodiscard]] nlohmann::ordered_json json_of(const OperatorReport& report);

/// Throws std::invalid_argument unless `arch` is one architecture that this program's kernels can be made for, as far
/// as that is known without NVRTC: "sm_75" or newer.
void require_arch(const std::string& arch);

/// The architecture of the GPU as far as NVRTC knows it; sm_90 without a GPU.
[[nodiscard]] std::string default_arch(const Nvrtc& nvrtc);

}  // namespace packjit
