#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "cli/commands.hpp"
#include "cli/config_question.hpp"
#include "cli/disassembler.hpp"
#include "cli/kernel_report.hpp"
#include "cli/spec_options.hpp"
#include "cli/terminal.hpp"
#include "database/record_json.hpp"
#include "generator/generate.hpp"
#include "generator/search_space.hpp"
#include "runtime/cuda_device.hpp"
#include "runtime/errors.hpp"
#include "runtime/occupancy.hpp"

namespace packjit {
namespace {

struct InspectOptions {
  SpecOptions spec;
  ConfigQuestion question;
  std::string arch;
  bool source = false;
  bool ptx = false;
  bool sass = false;
  bool json = false;
};

constexpr std::string_view kNoDisassembler =
    "no disassembler found: neither nvdisasm nor cuobjdump is in CUDA_HOME, CUDA_PATH, PATH or /usr/local/cuda; "
    "install "
    "the CUDA toolkit, or its package cuda-nvdisasm, to see SASS";

/// The Config that is looked at, and where it comes from.
struct Inspected {
  Config config;
  std::string origin;  ///< "exact: ..."; empty where no shape was given: the built-in Config for much work
};

Inspected inspected(const InspectOptions& options, const Spec& spec, const std::string& arch) {
  if (!options.question.has_shape()) return {options.spec.config(spec, arch), {}};
  // A GPU that is here is asked about as the model that it is.
  const bool is_here = options.arch.empty() && !survey_driver().gpus.empty();
  const Choice choice = options.question.answer(spec, is_here ? "" : arch).choice;
  return {options.spec.config(spec, choice.config), fmt::format("{}: {}", name_of(choice.outcome), choice.origin)};
}

// Where a Config field's value came from.
std::string_view reason(const InspectOptions& options, std::string_view field) {
  if (options.spec.sets(field)) return "--set";
  return options.question.has_shape() ? "looked up" : "built-in default";
}

std::ptrdiff_t line_count(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

std::string config_text(const InspectOptions& options, const OperatorReport& report, const std::string& origin) {
  std::string text = fmt::format("Config on {}{}\n", report.arch, origin.empty() ? "" : ", " + origin);
  for (const Field& field : report.config.values.table()) {
    text += fmt::format("  {:<16} {:<10} {:<18} {}\n", field.name, report.config.values.text(field.name),
                        reason(options, field.name), field.meaning);
  }
  if (origin.empty()) {
    text +=
        "  This is the built-in Config for much work. With --dim and --tokens, the one that such a call gets here.\n";
  }
  return text;
}

std::string kernel_text(const KernelReport& kernel) {
  const KernelInfo& image = kernel.image;
  std::string text = fmt::format("Kernel {}\n", image.name);
  const auto row = [&](std::string_view label, const std::string& value) {
    text += fmt::format("  {:<16} {}\n", label, value);
  };
  row("registers", fmt::format("{} a thread", image.registers));
  const std::int64_t local = std::max(image.frame_bytes, image.stack_bytes);
  row("spills", image.spill_free() ? "none; no local memory" : fmt::format("{} bytes of local memory a thread", local));
  if (kernel.spills && !image.spill_free()) {
    row("",
        fmt::format("{} bytes of spill stores, {} of loads", kernel.spills->store_bytes, kernel.spills->load_bytes));
  }
  row("shared memory", fmt::format("{} bytes a block: {} static, {} given at launch", kernel.shared_bytes(),
                                   image.shared_bytes, kernel.dynamic_shared));
  if (kernel.block > 0) row("block", fmt::format("{} threads", kernel.block));
  if (kernel.occupancy) {
    const Occupancy& occupancy = *kernel.occupancy;
    row("occupancy", fmt::format("{} blocks, {} of {} warps on a multiprocessor, limited by {}", occupancy.blocks,
                                 occupancy.warps, occupancy.max_warps, occupancy.limit));
  } else {
    row("occupancy", kernel.block > 0 ? "not known for this architecture" : "not launched by this operator");
  }
  row("code", fmt::format("{} bytes", image.code_bytes));
  return text;
}

// What the driver says where there is a GPU of this architecture; it includes what no table knows.
std::string driver_text(const OperatorReport& report) {
  const DriverSurvey survey = survey_driver();
  if (survey.gpus.empty() || survey.gpus.front().arch != report.arch) return {};
  const auto device = CudaDevice::open();
  const auto module = device->load_text(report.source);
  std::string text = fmt::format("As loaded on {}\n", device->info().name);
  for (const KernelReport& kernel : report.kernels) {
    if (kernel.block == 0) continue;
    KernelLaunch launch;
    launch.entry = kernel.image.name;
    launch.block = kernel.block;
    launch.shared_bytes = static_cast<std::uint32_t>(kernel.dynamic_shared);
    const LoadedKernel loaded = device->inspect(*module, launch);
    text += fmt::format("  {}: {} registers, {} bytes local, {} blocks on a multiprocessor\n", kernel.image.name,
                        loaded.registers, loaded.local_bytes, loaded.blocks_per_multiprocessor);
  }
  return text + "\n";
}

/// Configs that a tuner may choose from.
std::size_t search_space_size(const Spec& spec, const std::string& arch) {
  constexpr std::int64_t kLeastSinceSm80 = std::int64_t{99} * 1024;  // bytes, for architectures that no table knows
  const std::optional<ArchLimits> limits = arch_limits(arch);
  return search_space(spec, {arch, limits ? limits->shared_per_block : kLeastSinceSm80}).size();
}

std::string summary(const InspectOptions& options, const Spec& spec, const OperatorReport& report,
                    const std::string& origin) {
  std::string text = fmt::format("{}\n", name_of(spec.op));
  for (const Field& field : spec.values.table()) {
    text += fmt::format("  {:<16} {:<14} {}\n", field.name, spec.values.text(field.name), field.meaning);
  }
  text += "\n" + config_text(options, report, origin) + "\n";
  for (const KernelReport& kernel : report.kernels) text += kernel_text(kernel) + "\n";
  text += driver_text(report);
  text += fmt::format("search space: {} valid Configs on {}\n", search_space_size(spec, report.arch), report.arch);
  text += fmt::format("Compiled by NVRTC {} in {:.2f} s with {}\n", report.compiled.nvrtc_version,
                      report.compiled.seconds, fmt::join(report.compiled.options, " "));
  text += fmt::format("  source {} lines (--source), PTX {} lines (--ptx), cubin {} bytes (--sass: {})\n",
                      line_count(report.source), line_count(report.compiled.ptx), report.compiled.cubin.size(),
                      find_disassembler().value_or("no disassembler found"));
  return text;
}

/// Without NVRTC: source is printed here, not compiled.
void print_source(const InspectOptions& options, const Spec& spec) {
  std::string arch = options.arch;
  if (arch.empty()) {
    const DriverSurvey survey = survey_driver();
    arch = survey.gpus.empty() ? "sm_90" : survey.gpus.front().arch;
  }
  print_result(generate(spec, inspected(options, spec, arch).config).text);
}

void run_inspect(const InspectOptions& options) {
  const Spec spec = options.spec.spec();
  if (!options.arch.empty()) require_arch(options.arch);
  if (!options.json && options.source + options.ptx + options.sass > 1) {
    throw std::invalid_argument("inspect: --source, --ptx and --sass each print one text; give one, or add --json");
  }
  if (options.source && !options.json) {
    print_source(options, spec);
    return;
  }
  const std::optional<std::string> disassembler = options.sass ? find_disassembler() : std::nullopt;
  if (options.sass && !disassembler) throw EnvironmentError(std::string(kNoDisassembler));
  const auto nvrtc = Nvrtc::shared();
  const std::string arch = options.arch.empty() ? default_arch(*nvrtc) : options.arch;
  const auto [config, origin] = inspected(options, spec, arch);
  const OperatorReport report = report_operator(*nvrtc, spec, config, arch);
  const std::string sass = disassembler ? disassemble(*disassembler, report.compiled.cubin) : "";
  if (options.json) {
    nlohmann::ordered_json json = {{"operator", name_of(spec.op)}, {"spec", spec.values.text()}};
    json.update(json_of(report));
    nlohmann::ordered_json why = nlohmann::ordered_json::object();
    for (const Field& field : report.config.values.table()) why[std::string(field.name)] = reason(options, field.name);
    json["config_why"] = why;
    json["config_origin"] = origin.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(origin);
    json["search_space"] = search_space_size(spec, arch);
    json["nvrtc"] = nvrtc->version_text();
    if (options.source) json["source"] = report.source;
    if (options.ptx) json["ptx"] = report.compiled.ptx;
    if (options.sass) json["sass"] = sass;
    print_result(dump_text(json, 2) + "\n");
    return;
  }
  if (options.ptx) print_result(report.compiled.ptx);
  if (options.sass) print_result(sass);
  if (!options.ptx && !options.sass) print_result(summary(options, spec, report, origin));
}

}  // namespace

void register_inspect(CLI::App& app) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* command = app.add_subcommand("inspect", "Shows what an operator's kernels are made of");
  options->spec.add_operator_and_spec(*command);
  options->spec.add_config(*command);
  options->question.add_shape(*command);
  command->add_option("--arch", options->arch, "architecture to compile for (default: the GPU's, or sm_90)")
      ->type_name("ARCH");
  command->add_flag("--source", options->source, "prints the generated source instead of the summary");
  command->add_flag("--ptx", options->ptx, "prints the PTX instead of the summary");
  command->add_flag("--sass", options->sass, "prints the SASS instead of the summary; needs nvdisasm or cuobjdump");
  command->add_flag("--json", options->json, "prints JSON");
  command->callback([options] { run_inspect(*options); });
}

}  // namespace packjit
