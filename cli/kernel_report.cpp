#include "cli/kernel_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "generator/generate.hpp"
#include "runtime/cuda_device.hpp"
#include "runtime/image_choice.hpp"

namespace packjit {
namespace {

// Block and shared memory of a launch do not depend on the sizes, so any valid ones do.
Plan any_plan(const Spec& spec, const Config& config) {
  Problem problem;
  Sizes& sizes = problem.sizes;
  sizes.batch = 1;
  sizes.seqlen = 4096;
  sizes.dim = 2048;
  sizes.n_sequences = problem.items = 8;
  if (is_scan(spec.op)) {
    sizes.d_state = spec.values["d_state"];
    sizes.groups = spec.values["groups"] == 0 ? 1 : 2;
  } else if (spec.op != Operator::sequence_map) {
    sizes.conv_width = spec.values["conv_width"];
    sizes.history = sizes.conv_width - 1;
  }
  return plan(spec, config, problem);
}

}  // namespace

bool OperatorReport::spill_free() const {
  return std::all_of(kernels.begin(), kernels.end(),
                     [](const KernelReport& kernel) { return kernel.image.spill_free(); });
}

OperatorReport report_operator(const Nvrtc& nvrtc, const Spec& spec, const Config& config, const std::string& arch,
                               const std::optional<std::string>& edited) {
  const Plan launches = any_plan(spec, config);
  OperatorReport report{arch, config, "edited", edited.value_or(""), {}, {}};
  if (!edited) {
    check_arch(config, arch);
    Source source = generate(spec, config, Target::cuda);
    report.key = std::move(source.key);
    report.source = std::move(source.text);
  }
  report.compiled = compile(nvrtc, report.source, arch, {.verbose = true});
  if (!report.compiled.ok) {
    if (edited) throw std::invalid_argument(describe_failure(report.compiled));
    throw std::logic_error("generated source does not compile. " + describe_failure(report.compiled));
  }
  const ImageInfo image = read_image(report.compiled.cubin);
  const std::vector<SpillReport> spills = spills_in_log(report.compiled.log);
  const std::optional<ArchLimits> limits = arch_limits(arch);
  const auto add = [&](const KernelInfo& info, const KernelLaunch* launch) {
    KernelReport kernel;
    kernel.image = info;
    const auto spill = std::find_if(spills.begin(), spills.end(), [&](const auto& s) { return s.kernel == info.name; });
    if (spill != spills.end()) kernel.spills = *spill;
    if (launch != nullptr) {
      kernel.block = launch->block;
      kernel.dynamic_shared = launch->shared_bytes;
      if (limits && kernel.shared_bytes() > limits->shared_per_block) {
        throw std::invalid_argument(fmt::format(
            "{} with config {} cannot be launched on {}: a block needs {} bytes of shared memory, has {}; choose a "
            "smaller tile_tokens or block with --set",
            info.name, config.values.text(), arch, kernel.shared_bytes(), limits->shared_per_block));
      }
      if (limits) {
        kernel.occupancy = occupancy(*limits, info.registers, kernel.shared_bytes(), static_cast<int>(launch->block));
      }
    }
    report.kernels.push_back(std::move(kernel));
  };
  const auto launched = [&](const KernelInfo& info) {
    return std::any_of(launches.launches.begin(), launches.launches.end(),
                       [&](const KernelLaunch& launch) { return launch.entry == info.name; });
  };
  for (const KernelLaunch& launch : launches.launches) {
    for (const KernelInfo& info : image.kernels) {
      if (info.name == launch.entry) add(info, &launch);
    }
  }
  for (const KernelInfo& info : image.kernels) {
    if (!launched(info)) add(info, nullptr);
  }
  return report;
}

nlohmann::ordered_json json_of(const OperatorReport& report) {
  nlohmann::ordered_json kernels = nlohmann::ordered_json::array();
  for (const KernelReport& kernel : report.kernels) {
    nlohmann::ordered_json json = {{"name", kernel.image.name},
                                   {"registers", kernel.image.registers},
                                   {"frame_bytes", kernel.image.frame_bytes},
                                   {"stack_bytes", kernel.image.stack_bytes},
                                   {"static_shared_bytes", kernel.image.shared_bytes},
                                   {"dynamic_shared_bytes", kernel.dynamic_shared},
                                   {"block", kernel.block},
                                   {"code_bytes", kernel.image.code_bytes},
                                   {"spill_free", kernel.image.spill_free()}};
    if (kernel.spills) {
      json["spill_store_bytes"] = kernel.spills->store_bytes;
      json["spill_load_bytes"] = kernel.spills->load_bytes;
    }
    if (kernel.occupancy) {
      json["occupancy"] = {{"blocks", kernel.occupancy->blocks},
                           {"warps", kernel.occupancy->warps},
                           {"max_warps", kernel.occupancy->max_warps},
                           {"limit", kernel.occupancy->limit}};
    }
    kernels.push_back(std::move(json));
  }
  nlohmann::ordered_json config = nlohmann::ordered_json::object();
  for (const Field& field : report.config.values.table()) {
    config[std::string(field.name)] = report.config.values.text(field.name);
  }
  return {{"arch", report.arch},
          {"key", report.key},
          {"config", config},
          {"kernels", kernels},
          {"spill_free", report.spill_free()},
          {"cubin_bytes", report.compiled.cubin.size()},
          {"ptx_bytes", report.compiled.ptx.size()},
          {"seconds", report.compiled.seconds},
          {"options", report.compiled.options}};
}

void require_arch(const std::string& arch) {
  constexpr int kOldest = 75;
  if (arch == "all" || arch.find(',') != std::string::npos) {
    throw std::invalid_argument(
        fmt::format("--arch '{}': expected one architecture, such as sm_90; packjit compile takes several", arch));
  }
  if (arch_number(arch) >= kOldest) return;
  std::string known;
  for (int number = kOldest; number < 200; ++number) {
    const std::string name = fmt::format("sm_{}", number);
    if (arch_limits(name)) known += (known.empty() ? "" : ", ") + name;
  }
  throw std::invalid_argument(fmt::format("--arch '{}': expected one of {}, or a newer one", arch, known));
}

std::string default_arch(const Nvrtc& nvrtc) {
  const DriverSurvey survey = survey_driver();
  if (survey.gpus.empty()) return "sm_90";
  return arch_for_gpu(survey.gpus.front().arch, nvrtc.archs(), nvrtc.version_text());
}

}  // namespace packjit
