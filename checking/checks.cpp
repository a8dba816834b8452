#include "checking/checks.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "checking/compare.hpp"
#include "checking/inputs.hpp"
#include "checking/rearrange.hpp"
#include "generator/ssm_simple.hpp"

namespace packjit::checking {

namespace {

/// Overwrites one slice of every per-token and per-slot input.
template <typename Write>
void change_sequence(const Case& check_case, std::size_t slot, HostTensors& inputs, const Write& write) {
  const Sequence sequence = sequences_of(check_case)[slot];
  const Grid grid(check_case);
  for (auto& [name, tensor] : inputs) {
    if (extent_of(check_case, name) == Extent::shared) continue;
    write(name, tensor, slice_of(grid, sequence, slot, name, tensor.count()));
  }
}

/// Writes one value, rounded to the tensor's type, over a slice; both parts of complex numbers get it.
void fill(HostTensor& tensor, Slice slice, double value) {
  const std::vector<double> values(tensor.type == ElementType::complex64 ? 2 : 1, value);
  const HostTensor one = HostTensor::from_double(tensor.type, {1}, values);
  const std::size_t width = size_of(tensor.type);
  for (std::size_t i = 0; i < slice.count; ++i) {
    std::memcpy(tensor.bytes.data() + (slice.first + i) * width, one.bytes.data(), width);
  }
}

void fill_padding(const Case& check_case, HostTensors& inputs, double value) {
  const Grid grid(check_case);
  for (std::size_t r = 0; r < check_case.rows.size(); ++r) {
    std::int64_t start = 0;
    for (const Stretch& stretch : check_case.rows[r]) {
      if (stretch.padding) {
        const Sequence place{static_cast<std::int64_t>(r), start, stretch.length};
        for (auto& [name, tensor] : inputs) {
          if (extent_of(check_case, name) == Extent::token)
            fill(tensor, slice_of(grid, place, 0, name, tensor.count()), value);
        }
      }
      start += stretch.length;
    }
  }
}

std::vector<Result> joined(std::vector<Result> a, std::vector<Result> b) {
  a.insert(a.end(), std::make_move_iterator(b.begin()), std::make_move_iterator(b.end()));
  return a;
}

std::vector<Result> labelled(std::vector<Result> results, const std::string& label) {
  for (Result& result : results) {
    if (!result.pass()) result.where = label + ", " + result.where;
  }
  return results;
}

}  // namespace

HostTensors run_case(Device& device, const Case& check_case, const HostTensors& inputs,
                     const std::optional<Config>& config, const std::optional<Boundaries>& boundaries) {
  HostCall call{.spec = spec_of(check_case),
                .config = config ? *config : config_of(check_case, device.info().arch),
                .layout = check_case.layout,
                .final_states = check_case.final_states && !is_backward(check_case.op),
                .source = std::nullopt,
                .final_states_only_if_asked = true};
  const SequenceMap map =
      boundaries ? build_sequence_map(*boundaries, check_case.batch(), check_case.seqlen()) : map_of(check_case);
  if (check_case.layout != Layout::channel_major) return run_on_host_tensors(device, call, inputs, map);
  HostTensors swapped = inputs;
  for (auto& [name, tensor] : swapped) {
    if (is_activation(name)) tensor = swap_token_and_channel(tensor);
  }
  HostTensors outputs = run_on_host_tensors(device, call, swapped, map);
  for (auto& [name, tensor] : outputs) {
    if (is_activation(name)) tensor = swap_token_and_channel(tensor);
  }
  return outputs;
}

Config second_config(const Case& check_case, const std::string& arch) {
  const Spec spec = spec_of(check_case);
  Config config = config_of(check_case, arch);
  for (const Field& field : config.values.table()) {
    const int current = config.values[field.name];
    for (const int candidate : {current / 2, current * 2, current - 1, current + 1}) {
      if (candidate < field.minimum || candidate > field.maximum || candidate == current) continue;
      Config changed = config;
      try {
        changed.values.set(field.name, candidate);
        check_pair(spec, changed);
      } catch (const std::invalid_argument&) {
        continue;
      }
      config = changed;
      break;
    }
  }
  return config;
}

Config little_work_config(const Case& check_case, const std::string& arch) {
  const Workload little{16, 1, check_case.dim};
  return builtin_config(spec_of(check_case), arch, little);
}

CaseRun first_run(Device& device, const Case& check_case) {
  CaseRun run{check_case, make_inputs(check_case), {}};
  run.outputs = run_case(device, check_case, run.inputs);
  return run;
}

std::vector<Result> check_against_oracle(const CaseRun& run, const Reference& reference) {
  return compare_with_reference(CheckKind::oracle, run.check_case, run.outputs, reference);
}

std::vector<Result> check_second_config(Device& device, const CaseRun& run, const Reference& reference) {
  std::vector<Result> results;
  for (const Config& config :
       {second_config(run.check_case, device.info().arch), little_work_config(run.check_case, device.info().arch)}) {
    const HostTensors outputs = run_case(device, run.check_case, run.inputs, config);
    const std::vector<Result> more = labelled(
        compare_with_reference(CheckKind::second_config, run.check_case, outputs, reference), config.values.text());
    results.insert(results.end(), more.begin(), more.end());
  }
  return results;
}

CaseRun run_with_stored_checkpoints(Device& device, const CaseRun& run) {
  Case forward = run.check_case;
  forward.op = Operator::ssm_pack_fwd;
  forward.config.clear();
  forward.final_states = forward.initial_states;
  forward.checkpoints = true;
  HostTensors inputs = run.inputs;
  inputs.erase("dout");
  inputs.erase("dfinal_states");
  HostTensors stored = run_case(device, forward, inputs);
  CaseRun backward{run.check_case, run.inputs, {}};
  backward.check_case.checkpoints = true;
  backward.inputs["checkpoints"] = std::move(stored.at("checkpoints"));
  backward.outputs = run_case(device, backward.check_case, backward.inputs);
  return backward;
}

std::vector<Result> check_stored_checkpoints(Device& device, const CaseRun& run, const Reference& reference) {
  // Where A is complex, or B or C constant, the backward takes no checkpoints.
  if (run.check_case.op != Operator::ssm_pack_bwd || is_simple_scan(spec_of(run.check_case))) return {};
  CaseRun built_in = run;
  built_in.check_case.config.clear();
  const CaseRun stored = run_with_stored_checkpoints(device, built_in);
  return compare_with_reference(CheckKind::stored_checkpoints, stored.check_case, stored.outputs, reference);
}

std::vector<Result> check_against_padded(Device& device, const CaseRun& run, double reduction) {
  std::vector<std::vector<Piece>> rows;
  const std::vector<Sequence> sequences = sequences_of(run.check_case);
  for (std::size_t slot = 0; slot < sequences.size(); ++slot) rows.push_back({{slot, 0, sequences[slot].length}});
  const Part part = make_part(run.check_case, rows);
  const HostTensors padded = run_case(device, part.check_case, take_part(run.check_case, run.inputs, part));
  HostTensors unpadded;
  put_part(run.check_case, part, padded, unpadded);
  Reference reference;
  reference.reduction = reduction;
  for (const auto& [name, tensor] : unpadded) reference.outputs[name] = tensor.to_double();
  return compare_with_reference(CheckKind::padded, run.check_case, run.outputs, reference);
}

std::vector<Result> check_isolation_of(Device& device, const CaseRun& run, std::size_t victim) {
  const Case& c = run.check_case;
  Case other = c;
  other.seed = c.seed + 1000;
  const HostTensors other_inputs = make_inputs(other);
  HostTensors changed = run.inputs;
  change_sequence(c, victim, changed, [&](const std::string& name, HostTensor& tensor, Slice slice) {
    const std::size_t width = size_of(tensor.type);
    if (slice.count == 0) return;
    std::memcpy(tensor.bytes.data() + slice.first * width, other_inputs.at(name).bytes.data() + slice.first * width,
                slice.count * width);
  });
  const auto compare = [&](const std::string& label) {
    return labelled(compare_bits(CheckKind::isolation, c, run.outputs, run_case(device, c, changed), victim), label);
  };
  std::vector<Result> results = compare("other values");
  const std::pair<double, const char*> poisons[] = {{std::numeric_limits<double>::quiet_NaN(), "NaN"},
                                                    {std::numeric_limits<double>::infinity(), "infinity"}};
  for (const auto& poison : poisons) {
    change_sequence(c, victim, changed,
                    [&](const std::string&, HostTensor& tensor, Slice slice) { fill(tensor, slice, poison.first); });
    results = joined(std::move(results), compare(poison.second));
  }
  return results;
}

std::vector<Result> check_isolation(Device& device, const CaseRun& run) {
  const Case& c = run.check_case;
  const std::size_t count = sequences_of(c).size();
  std::vector<Result> results;
  if (count > 1) results = check_isolation_of(device, run, count / 2);
  if (has_padding(c)) {
    HostTensors changed = run.inputs;
    fill_padding(c, changed, std::numeric_limits<double>::quiet_NaN());
    results = joined(
        std::move(results),
        labelled(compare_bits(CheckKind::isolation, c, run.outputs, run_case(device, c, changed)), "NaN in padding"));
  }
  return results;
}

std::vector<Result> check_repeat(Device& device, const CaseRun& run) {
  return compare_bits(CheckKind::repeat, run.check_case, run.outputs, run_case(device, run.check_case, run.inputs));
}

std::vector<Result> check_boundary_forms(Device& device, const CaseRun& run) {
  using Form = Boundaries::Form;
  std::vector<Result> results;
  const std::pair<Form, const char*> forms[] = {
      {Form::seq_idx, "seq_idx"}, {Form::cu_seqlens, "cu_seqlens"}, {Form::rows, "rows"}};
  for (const auto& [form, label] : forms) {
    const std::optional<Boundaries> boundaries = boundaries_of(run.check_case, form);
    if (!boundaries) continue;
    const HostTensors outputs = run_case(device, run.check_case, run.inputs, {}, boundaries);
    results = joined(std::move(results),
                     labelled(compare_bits(CheckKind::boundary_form, run.check_case, run.outputs, outputs), label));
  }
  return results;
}

std::vector<Result> check_thread_orders(std::span<Device* const> devices, const CaseRun& run) {
  std::vector<Result> results;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    results = joined(std::move(results), labelled(compare_bits(CheckKind::thread_order, run.check_case, run.outputs,
                                                               run_case(*devices[i], run.check_case, run.inputs)),
                                                  "order " + std::to_string(i)));
  }
  return results;
}

}  // namespace packjit::checking
