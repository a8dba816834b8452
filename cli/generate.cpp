#include "generator/generate.hpp"

#include <memory>
#include <stdexcept>
#include <string>

#include "cli/commands.hpp"
#include "cli/kernel_report.hpp"
#include "cli/output_file.hpp"
#include "cli/spec_options.hpp"
#include "cli/terminal.hpp"
#include "database/builtin_config.hpp"

namespace packjit {
namespace {

struct GenerateOptions {
  SpecOptions spec;
  std::string target = "cuda";
  std::string arch;
  std::string output;
};

void run_generate(const GenerateOptions& options) {
  const bool host = options.target == "host";
  if (!host && options.target != "cuda") {
    throw std::invalid_argument("--target '" + options.target + "': expected cuda or host");
  }
  if (host && !options.arch.empty()) throw std::invalid_argument("--arch does not apply to --target host");
  // The default must not depend on the machine: the same command prints the same bytes everywhere.
  const std::string arch = host ? "host" : options.arch.empty() ? kAnyArch : options.arch;
  if (!host && arch != kAnyArch) require_arch(arch);
  const Spec spec = options.spec.spec();
  const Config config = options.spec.config(spec, arch);
  check_arch(config, arch);
  const Source source = generate(spec, config, host ? Target::host : Target::cuda);
  if (options.output.empty()) {
    print_result(source.text);
  } else {
    write_output_file(options.output, source.text);
  }
}

}  // namespace

void register_generate(CLI::App& app) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* command = app.add_subcommand("generate", "Prints the CUDA source of an operator");
  options->spec.add_operator_and_spec(*command);
  options->spec.add_config(*command);
  command->add_option("--arch", options->arch, "whose built-in Config is the start (default: one that fits all)")
      ->type_name("ARCH");
  command->add_option("--target", options->target, "cuda, or host for the C++ of host execution (default cuda)")
      ->type_name("TARGET");
  command->add_option("-o,--output", options->output, "file to write instead of standard output")->type_name("FILE");
  command->callback([options] { run_generate(*options); });
}

}  // namespace packjit
