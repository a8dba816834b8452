#include "checking/successive_calls.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "checking/compare.hpp"
#include "checking/inputs.hpp"
#include "checking/random.hpp"

namespace packjit::checking {
namespace {

Operator forward_of(Operator op) { return is_scan(op) ? Operator::ssm_pack_fwd : Operator::conv1d_pack_fwd; }

std::size_t index(std::int64_t number) { return static_cast<std::size_t>(number); }

/// The states of one slot.
void copy_slot(const HostTensor& from, std::int64_t from_slot, HostTensor& to, std::int64_t to_slot) {
  const std::size_t bytes = from.bytes.size() / index(from.shape[0]);
  std::memcpy(to.bytes.data() + index(to_slot) * bytes, from.bytes.data() + index(from_slot) * bytes, bytes);
}

/// The calls of one case, forward and then, for a backward operator, back.
class Run {
 public:
  Run(Device& device, const Case& whole, const HostTensors& inputs, const SuccessiveCalls& calls,
      const std::optional<Config>& config)
      : device_(device), whole_(whole), inputs_(inputs), calls_(calls), config_(config) {}

  HostTensors outputs() {
    for (std::size_t call = 0; call < calls_.parts.size(); ++call) forward(call);
    if (is_backward(whole_.op)) {
      for (std::size_t call = calls_.parts.size(); call-- > 0;) backward(call);
    }
    return std::move(outputs_);
  }

 private:
  /// Zero, or the whole case's, in the slots of a call.
  [[nodiscard]] HostTensor states_of(const Part& part, const std::string& name, const HostTensor& like) const {
    const auto given = inputs_.find(name);
    if (given != inputs_.end()) return take_part(whole_, {{name, given->second}}, part).at(name);
    std::vector<std::int64_t> shape = like.shape;
    shape[0] = static_cast<std::int64_t>(part.pieces.size());
    return HostTensor::zeros(like.type, shape);
  }

  void forward(std::size_t call) {
    const Part& part = calls_.parts[call];
    Case c = part.check_case;
    c.op = forward_of(whole_.op);
    c.final_states = true;
    if (is_backward(whole_.op)) c.config.clear();
    HostTensors given = take_part(whole_, inputs_, part);
    given.erase("dout");
    given.erase("dfinal_states");
    for (const StateHandover& handover : calls_.handovers) {
      if (index(handover.to.call) != call) continue;
      const HostTensor& from = final_states_.at(index(handover.from.call));
      if (!given.contains("initial_states")) given["initial_states"] = states_of(part, "initial_states", from);
      copy_slot(from, handover.from.slot, given["initial_states"], handover.to.slot);
    }
    c.initial_states = given.contains("initial_states");
    if (c.initial_states) initial_states_[call] = given["initial_states"];
    HostTensors outputs = run_case(device_, c, given, is_backward(whole_.op) ? std::nullopt : config_);
    final_states_.push_back(outputs.at("final_states"));
    if (!is_backward(whole_.op)) put_part(whole_, part, outputs, outputs_);
  }

  void backward(std::size_t call) {
    const Part& part = calls_.parts[call];
    Case c = part.check_case;
    HostTensors given = take_part(whole_, inputs_, part);
    const auto initial = initial_states_.find(call);
    c.initial_states = initial != initial_states_.end();
    if (c.initial_states) given["initial_states"] = initial->second;
    for (const StateHandover& handover : calls_.handovers) {
      if (index(handover.from.call) != call) continue;
      const HostTensor& back = dinitial_states_.at(index(handover.to.call));
      if (!given.contains("dfinal_states")) given["dfinal_states"] = states_of(part, "dfinal_states", back);
      copy_slot(back, handover.to.slot, given["dfinal_states"], handover.from.slot);
    }
    c.final_states = given.contains("dfinal_states");
    HostTensors outputs = run_case(device_, c, given, config_);
    if (c.initial_states) dinitial_states_[call] = outputs.at("dinitial_states");
    // From the last call to the first: what stays is the gradient before the first piece.
    if (!whole_.initial_states) outputs.erase("dinitial_states");
    put_part(whole_, part, outputs, outputs_);
  }

  Device& device_;
  const Case& whole_;
  const HostTensors& inputs_;
  const SuccessiveCalls& calls_;
  const std::optional<Config>& config_;
  std::vector<HostTensor> final_states_;                                ///< of each call
  std::map<std::size_t, HostTensor> initial_states_, dinitial_states_;  ///< of calls that have them
  HostTensors outputs_;
};

struct NamedConfig {
  std::string name;
  Config config;
  bool segments;
};
/// The built-in Config, and the one for a long sequence alone, which a scan runs in segments.
std::vector<NamedConfig> configs_of(const Case& whole, const std::string& arch) {
  NamedConfig little{"little work", little_work_config(whole, arch), false};
  if (is_scan(whole.op)) {
    little.config.values.set("segments", 1);
    little = {"segments", little.config, true};
  }
  return {{"built-in", config_of(whole, arch), false}, little};
}

/// Whether two runs have one piece's tokens alike, but for its last `left_out` ones.
bool same_bits(const Piece& piece, std::int64_t left_out, const std::string& name, const HostTensor& a,
               const HostTensor& b, const std::vector<Sequence>& sequences, const Grid& grid) {
  Sequence place = sequences[piece.slot];
  place.start += piece.offset;
  place.length = std::max<std::int64_t>(piece.length - left_out, 0);
  const Slice slice = slice_of(grid, place, piece.slot, name, a.count());
  const std::size_t width = size_of(a.type);
  return std::memcmp(a.bytes.data() + slice.first * width, b.bytes.data() + slice.first * width, slice.count * width) ==
         0;
}

}  // namespace

SuccessiveCalls calls_of(const Case& whole, const PackPlan& plan) {
  SuccessiveCalls calls{{}, state_handovers(plan, SlotNumbering::position_indices)};
  for (const Call& call : plan.calls) {
    Part part{whole, {}};
    part.check_case.rows.clear();
    for (const packjit::Row& packed : call.rows) {
      Row row;
      for (const packjit::Piece& piece : packed.pieces) {
        row.push_back({piece.length, false});
        part.pieces.push_back({index(piece.document), piece.offset, piece.length});
      }
      const std::int64_t padding = padding_of(packed, plan.options.pack_length);
      if (padding > 0) row.push_back({padding, true});
      part.check_case.rows.push_back(std::move(row));
    }
    calls.parts.push_back(std::move(part));
  }
  return calls;
}

SuccessiveCalls cut_in_two(const Case& whole) {
  RandomStream random(whole.seed, "cut");
  std::vector<std::vector<Piece>> first(whole.rows.size());
  std::vector<Piece> second;
  SuccessiveCalls calls;
  const std::vector<Sequence> sequences = sequences_of(whole);
  for (std::size_t slot = 0; slot < sequences.size(); ++slot) {
    const Sequence& sequence = sequences[slot];
    const std::int64_t at = sequence.length < 2 ? sequence.length : random.integer(1, sequence.length - 1);
    first[index(sequence.row)].push_back({slot, 0, at});
    if (at == sequence.length) continue;
    // Rows without sequences are left out below, which does not change the order of the others' slots.
    const auto document = static_cast<std::int64_t>(slot);
    calls.handovers.push_back({document, {0, document}, {1, static_cast<std::int64_t>(second.size())}});
    second.push_back({slot, at, sequence.length - at});
  }
  std::erase_if(first, [](const auto& row) { return row.empty(); });
  calls.parts.push_back(make_part(whole, first));
  if (!second.empty()) calls.parts.push_back(make_part(whole, {second}));
  return calls;
}

HostTensors run_in_calls(Device& device, const Case& whole, const HostTensors& inputs, const SuccessiveCalls& calls,
                         const std::optional<Config>& config) {
  return Run(device, whole, inputs, calls, config).outputs();
}

std::vector<Result> check_cut(Device& device, const CaseRun& run, const Reference& reference) {
  const SuccessiveCalls calls = cut_in_two(run.check_case);
  if (calls.parts.size() < 2) return {};
  return compare_with_reference(CheckKind::cut, run.check_case, run_in_calls(device, run.check_case, run.inputs, calls),
                                reference);
}

std::vector<Result> check_successive_calls(Device& device, const CaseRun& run, const Reference& reference,
                                           const SuccessiveCalls& calls) {
  std::vector<Result> results;
  for (const auto& [name, config, segments] : configs_of(run.check_case, device.info().arch)) {
    const HostTensors outputs = run_in_calls(device, run.check_case, run.inputs, calls, config);
    std::vector<Result> more = compare_with_reference(CheckKind::successive_calls, run.check_case, outputs, reference);
    results.insert(results.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  }
  return results;
}

std::vector<PieceBits> piece_bits(Device& device, const CaseRun& run, const SuccessiveCalls& calls) {
  const Case& whole = run.check_case;
  const std::vector<Sequence> sequences = sequences_of(whole);
  const Grid grid(whole);
  std::vector<PieceBits> all;
  for (const auto& [config_name, config, segments] : configs_of(whole, device.info().arch)) {
    const HostTensors uncut = run_case(device, whole, run.inputs, config);
    const HostTensors cut = run_in_calls(device, whole, run.inputs, calls, config);
    for (const auto& [name, tensor] : uncut) {
      if (extent_of(whole, name) != Extent::token) continue;
      PieceBits bits{whole.op, whole.dtype, name, config_name};
      for (const Part& part : calls.parts) {
        for (const Piece& piece : part.pieces) {
          const bool more = piece.offset + piece.length < sequences[piece.slot].length;
          const bool must = !segments || (piece.offset == 0 && (!is_backward(whole.op) || !more));
          const std::int64_t left_out = name == "dx" && more ? whole.conv_width - 1 : 0;
          const bool same = same_bits(piece, left_out, name, tensor, cut.at(name), sequences, grid);
          ++bits.pieces;
          if (same) ++bits.equal;
          if (must) ++bits.must_be_equal;
          if (must && !same) ++bits.wrong;
        }
      }
      all.push_back(std::move(bits));
    }
  }
  return all;
}

std::vector<Result> results_of(const CaseRun& run, const std::vector<PieceBits>& bits) {
  std::vector<Result> results;
  for (const PieceBits& of_tensor : bits) {
    Result result;
    result.check = CheckKind::cut_bits;
    result.op = of_tensor.op;
    result.dtype = of_tensor.dtype;
    result.tensor = of_tensor.tensor;
    result.error = static_cast<double>(of_tensor.wrong);
    result.case_name = run.check_case.name;
    result.where = fmt::format("{} of {} pieces that must be equal", of_tensor.wrong, of_tensor.must_be_equal);
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace packjit::checking
