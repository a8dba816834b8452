#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/output_file.hpp"
#include "cli/run_inputs.hpp"
#include "cli/safetensors.hpp"
#include "cli/safetensors_header.hpp"
#include "cli/source_file.hpp"
#include "cli/spec_options.hpp"
#include "cli/terminal.hpp"
#include "database/record_json.hpp"
#include "runtime/edited_source.hpp"
#include "runtime/host/host_compiler.hpp"
#include "runtime/log.hpp"
#include "runtime/operator_call.hpp"

namespace packjit {
namespace {

using Json = nlohmann::ordered_json;

struct RunArguments {
  std::string op;
  std::string in;
  std::string out;
  std::string device = "auto";
  std::string source;
  std::string layout = "token-major";
  std::string activation;  ///< empty: the operator's default
  bool rows = false;
  bool no_softplus = false;
  bool final_states = false;
  bool checkpoints = false;
  bool json = false;
  SpecOptions config;  ///< --set
};

/// A Spec from the options that no tensor decides. An option that the operator does not have is an error.
Spec spec_of(const RunArguments& arguments) {
  Spec spec(operator_named(arguments.op));
  const auto need = [&](bool given, std::string_view option, bool has, std::string_view who) {
    if (given && !has) {
      throw std::invalid_argument(fmt::format("{} is an option of {}; {} has none", option, who, arguments.op));
    }
  };
  need(!arguments.activation.empty(), "--activation", spec.values.has("activation"), "conv1d_pack");
  need(arguments.no_softplus, "--no-softplus", spec.values.has("softplus"), "ssm_pack");
  need(arguments.final_states, "--final-states", !is_backward(spec.op),
       "the forward operators (a backward one takes dfinal_states where the file has it)");
  need(arguments.checkpoints, "--checkpoints", spec.op == Operator::ssm_pack_fwd,
       "ssm_pack_fwd (the backward takes checkpoints where the file has them)");
  if (!arguments.activation.empty()) spec.values.set_text("activation", arguments.activation);
  if (arguments.no_softplus) spec.values.set("softplus", 0);
  spec.values.set("final_states", arguments.final_states ? 1 : 0);
  if (arguments.checkpoints) spec.values.set("checkpoints", 1);
  return spec;
}

void warn_of_ignored(const RunInputs& inputs, const RunArguments& arguments) {
  if (inputs.ignored.empty()) return;
  std::vector<std::string> names;
  for (const std::string& name : inputs.ignored) names.push_back(quoted_name(name));
  write_log({LogLevel::warning,
             fmt::format("{} holds tensors that {} does not take; ignored: {}", arguments.in, arguments.op,
                         fmt::join(names, ", ")),
             {}});
}

Json sizes_json(const RunInputs& inputs) {
  Json json;
  for (const char* symbol : {"batch", "seqlen", "dim", "groups", "d_state", "conv_width"}) {
    const std::int64_t size = inputs.sizes[symbol];
    if (size > 0) json[symbol] = size;
  }
  json["n_sequences"] = inputs.map.n_sequences;
  json["max_seqlen"] = inputs.map.max_seqlen;
  return json;
}

/// What was run, for --json. `requested_config` is the one asked for: a call may use shorter accesses than it names.
std::string json_report(const RunArguments& arguments, const RunInputs& inputs, const DeviceInfo& device,
                        const Config& config, const HostTensors& outputs, double seconds) {
  Json written = Json::object();
  for (const auto& [name, tensor] : outputs) {
    written[name] = {{"dtype", name_of(tensor.type)}, {"shape", tensor.shape}};
  }
  Json spec = json_of(inputs.spec.values);
  spec["layout"] = arguments.layout;
  const Json report = {{"operator", arguments.op},
                       {"device", {{"kind", device.kind}, {"name", device.name}, {"arch", device.arch}}},
                       {"sizes", sizes_json(inputs)},
                       {"spec", spec},
                       {"requested_config", json_of(config.values)},
                       {"ignored", inputs.ignored},
                       {"outputs", written},
                       {"out", arguments.out},
                       {"seconds", seconds}};
  return dump_text(report, 2) + "\n";
}

std::string text_report(const RunArguments& arguments, const RunInputs& inputs, const DeviceInfo& device,
                        const HostTensors& outputs, double seconds) {
  const Sizes& sizes = inputs.sizes;
  std::string text =
      fmt::format("{} on {} ({}): {} x {} tokens, {} channels, {} sequences, {}; {:.2f} s with compiling\n",
                  arguments.op, device.name, device.arch, sizes.batch, sizes.seqlen, sizes.dim, inputs.map.n_sequences,
                  inputs.spec.values.text("dtype"), seconds);
  for (const auto& [name, tensor] : outputs) {
    text += fmt::format("  {:<16} {:<6} {}\n", name, name_of(tensor.type), shape_text(tensor.shape));
  }
  return text + fmt::format("Written to {}.\n", arguments.out);
}

/// Source that the user gave and that does not compile is bad input.
HostTensors run_call(Device& device, const HostCall& call, const RunInputs& inputs) {
  try {
    return run_on_host_tensors(device, call, inputs.tensors, inputs.map);
  } catch (const host::HostCompileError& error) {
    if (!call.source) throw;
    throw std::invalid_argument(error.what());
  }
}

void run_run(const RunArguments& arguments) {
  const Spec options = spec_of(arguments);
  const bool channel_major = arguments.layout == "channel-major";
  const Layout layout = channel_major ? Layout::channel_major : Layout::token_major;
  refuse_same_file("--in", arguments.in, "--out", arguments.out);
  refuse_same_file("--source", arguments.source, "--out", arguments.out);
  std::optional<std::string> source;
  if (!arguments.source.empty()) source = read_source_file(arguments.source);

  const RunInputs inputs =
      select_run_inputs(options, layout, arguments.rows, read_safetensors(arguments.in), arguments.in);
  warn_of_ignored(inputs, arguments);
  // An unwritable place is found before the work; nothing appears there before commit().
  OutputFile file(arguments.out);

  const std::unique_ptr<Device> device = open_device(arguments.device);
  Config config = arguments.config.config(inputs.spec, device->info().arch);
  if (source) {
    const Target target = device->info().kind == "host" ? Target::host : Target::cuda;
    const SourceOrigin origin = origin_of(*source, inputs.spec, config, target);
    if (origin.spec.op == inputs.spec.op) {  // another operator's is refused with the rest of what does not fit
      arguments.config.require_agreement(origin.spec, origin.config);
      config = origin.config;
    }
  }
  const HostCall call{inputs.spec, config, layout, inputs.spec.values["final_states"] != 0, source};
  const auto start = std::chrono::steady_clock::now();
  const HostTensors outputs = run_call(*device, call, inputs);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  file.write(std::string_view(serialize(outputs)));
  file.commit();
  print_result(arguments.json ? json_report(arguments, inputs, device->info(), config, outputs, seconds)
                              : text_report(arguments, inputs, device->info(), outputs, seconds));
}

}  // namespace

void register_run(CLI::App& app) {
  const auto arguments = std::make_shared<RunArguments>();
  CLI::App* command = app.add_subcommand("run", "Runs one operator on named tensors from a safetensors file");
  command->add_option("OP", arguments->op, "conv1d_pack_fwd, conv1d_pack_bwd, ssm_pack_fwd or ssm_pack_bwd")
      ->required();
  command->add_option("--in", arguments->in, "safetensors file with the inputs and boundaries")
      ->type_name("FILE")
      ->required();
  command->add_option("--out", arguments->out, "safetensors file to write")->type_name("FILE")->required();
  command->add_option("--device", arguments->device, "auto (a GPU where there is one), cuda or host")
      ->check(CLI::IsMember({"auto", "cuda", "host"}))
      ->capture_default_str();
  command
      ->add_option("--source", arguments->source,
                   "hand-edited source, printed by packjit generate for these tensors, instead of the generated one")
      ->type_name("FILE");
  command->add_flag("--rows", arguments->rows, "every row is one sequence");
  command->add_option("--layout", arguments->layout, "of activations: (batch, seqlen, dim) or (batch, dim, seqlen)")
      ->check(CLI::IsMember({"token-major", "channel-major"}))
      ->capture_default_str();
  command->add_option("--activation", arguments->activation, "conv1d_pack: silu (default) or none")
      ->check(CLI::IsMember({"silu", "none"}));
  command->add_flag("--no-softplus", arguments->no_softplus, "ssm_pack: dt = delta + delta_bias as it is");
  command->add_flag("--final-states", arguments->final_states,
                    "forward: write final_states too (done anyway where initial_states is given)");
  command->add_flag("--checkpoints", arguments->checkpoints,
                    "ssm_pack_fwd: write states inside sequences too, which spare the backward a pass");
  arguments->config.add_config(*command);
  command->add_flag("--json", arguments->json, "report as JSON");
  command->callback([arguments] { run_run(*arguments); });
}

}  // namespace packjit
