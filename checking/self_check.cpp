#include "checking/self_check.hpp"

#include <algorithm>
#include <limits>

#include "checking/checks.hpp"
#include "checking/compare.hpp"
#include "checking/error_bounds.hpp"
#include "checking/inputs.hpp"
#include "checking/matrix.hpp"
#include "runtime/device_sequence_map.hpp"
#include "runtime/errors.hpp"

namespace packjit::checking {
namespace {

bool is_on(const FieldValues& values, std::string_view field) { return values.has(field) && values[field] != 0; }

/// Sequences at the edges of tiles, many short ones and a long one, between padding.
std::vector<Row> rows_for(std::int64_t taps, bool segments) {
  constexpr std::int64_t kTile = 8;  // tokens; other tiles are cut by the many sequences as well
  if (!segments) return telling_rows(taps, kTile, 1, true);
  return {row_of({-3, SEGMENT_TOKENS + 5, 20, -2, 1, 9})};
}

/// Sequences and padding in every place, as a device and the host map them.
void check_map(Device& device, const Spec& spec, const Config& config) {
  using Form = Boundaries::Form;
  Case c;
  c.rows = telling_rows(4, 8, 1, true);
  const auto form = [&] {
    for (const Form one : {Form::position_indices, Form::seq_idx, Form::cu_seqlens, Form::rows}) {
      if (spec.values.text("form") == name_of(one)) return one;
    }
    throw std::logic_error("no form of boundaries is named " + spec.values.text("form"));
  }();
  if (form == Form::cu_seqlens) c.rows = telling_rows(4, 8, 1, false);
  if (form == Form::rows) c.rows = {row_of({70}), row_of({70}), row_of({70})};
  const Boundaries boundaries = *boundaries_of(c, form);
  const SequenceMap expected = build_sequence_map(boundaries, c.batch(), c.seqlen());
  const MapLimits limits{c.batch(), c.seqlen(), expected.n_sequences + 3, expected.max_seqlen};

  ElementType type = ElementType::int32;
  for (const ElementType one : {ElementType::int16, ElementType::uint16, ElementType::int64}) {
    if (form != Form::rows && spec.values.text("index") == name_of(one)) type = one;
  }
  // Negative numbers are padding, which an unsigned type says by its largest.
  std::vector<double> values(boundaries.values.begin(), boundaries.values.end());
  constexpr double kUnsignedPadding = 65'535;
  if (type == ElementType::uint16) std::ranges::replace(values, -1.0, kUnsignedPadding);
  const bool flat = form == Form::cu_seqlens;
  const std::vector<std::int64_t> shape =
      flat ? std::vector{static_cast<std::int64_t>(values.size())} : std::vector{c.batch(), c.seqlen()};

  DeviceSequenceMap map(device, form, type, limits, static_cast<MapStorage>(spec.values["map"]), config);
  Buffer memory(device, std::max<std::size_t>(values.size() * sizeof(std::int64_t), 1));
  if (form == Form::rows) {
    map.build();
  } else {
    const HostTensor tensor = HostTensor::from_double(type, shape, values);
    device.write(memory.data(), tensor.bytes.data(), tensor.bytes.size());
    map.build({memory.data(), type, shape, flat ? std::vector<std::int64_t>{1} : std::vector{c.seqlen(), 1L}});
  }
  device.synchronize();
  try {
    map.check();
  } catch (const std::invalid_argument& error) {
    throw CheckFailed(std::string("sequence_map refuses boundaries that keep the rules: ") + error.what());
  }
  if (map.read() == with_unused_slots(expected, form, limits)) return;
  throw CheckFailed("sequence_map: the map differs from the one that the host builds");
}

/// Whole tensors against the oracle. Not sequence by sequence, as compare_with_reference() does: a sum that happens to
/// cancel in a sequence of one token would refuse a right kernel on somebody's machine, and one wrong token of these
/// few hundred is far beyond the bound of the whole.
std::vector<Result> compare_whole(const CaseRun& run, const Reference& reference) {
  const Case& c = run.check_case;
  std::vector<Result> results;
  for (const auto& [name, values] : reference.outputs) {
    const auto found = run.outputs.find(name);
    const double error = found == run.outputs.end() ? std::numeric_limits<double>::infinity()
                                                    : relative_error(found->second.to_double(), values);
    results.push_back(
        {CheckKind::oracle, c.op, c.dtype, name, error, bound_of(c, name, reference.reduction), c.name, "all"});
  }
  return results;
}

}  // namespace

Case self_check_case(const Spec& spec, const Config& config) {
  const FieldValues& values = spec.values;
  Case c;
  c.name = "self-check";
  c.op = spec.op;
  c.dtype = static_cast<Dtype>(values["dtype"]);
  c.layout = static_cast<Layout>(values["layout"]);
  c.initial_states = is_on(values, "initial_states");
  c.final_states = is_on(values, "final_states");
  c.checkpoints = is_on(values, "checkpoints");
  if (is_scan(spec.op)) {
    c.d_state = values["d_state"];
    c.groups = is_on(values, "groups") ? 2 : 1;
    c.softplus = is_on(values, "softplus");
    c.D = is_on(values, "D");
    c.z = is_on(values, "z");
    c.delta_bias = is_on(values, "delta_bias");
    c.constant_B = is_on(values, "constant_B");
    c.constant_C = is_on(values, "constant_C");
    c.complex_A = is_on(values, "complex_A");
  } else {
    c.conv_width = values["conv_width"];
    c.bias = is_on(values, "bias");
    c.silu = values.text("activation") == "silu";
    c.fp32_weights = is_on(values, "fp32_weights");
    c.map = static_cast<MapStorage>(values["map"]);
  }
  // More than a warp, no multiple of one, and so that the vector stays what it is; less where the oracle would be slow.
  const std::int64_t step = config.values["vector"] * c.groups;
  const std::int64_t wanted = c.d_state > 64 ? 5 : 35;
  c.dim = std::max<std::int64_t>((wanted + step - 1) / step, 2) * step;
  c.rows = rows_for(is_scan(c.op) ? 4 : c.conv_width, is_on(config.values, "segments"));
  for (const Field& field : config.values.table()) {
    c.config.emplace_back(std::string(field.name), config.values.text(field.name));
  }
  return c;
}

void self_check(Device& device, const Spec& spec, const Config& config) {
  if (spec.op == Operator::sequence_map) return check_map(device, spec, config);
  Case c = self_check_case(spec, config);
  const bool stored = is_backward(c.op) && c.checkpoints;
  if (stored) c.checkpoints = false;  // they are no input that is drawn
  CaseRun run{c, make_inputs(c), {}};
  if (stored) {
    run = run_with_stored_checkpoints(device, run);
  } else {
    run.outputs = run_case(device, c, run.inputs);
  }
  Report report;
  report.add(compare_whole(run, compute_reference(run.check_case, run.inputs)));
  if (report.results().empty()) throw std::logic_error("the self-check compared nothing");
  if (const Result* worst = report.worst_failure()) throw CheckFailed(describe(*worst));
}

}  // namespace packjit::checking
