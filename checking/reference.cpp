#include "checking/reference.hpp"

#include <algorithm>
#include <limits>

#include "checking/error_bounds.hpp"
#include "checking/inputs.hpp"
#include "oracle/oracle.hpp"

namespace packjit::checking {

namespace {

using Values = std::map<std::string, std::vector<double>, std::less<>>;

/// Reads slices of inputs and writes slices of outputs, one sequence at a time.
class Places {
 public:
  Places(const Case& check_case, const HostTensors& inputs)
      : case_(check_case), grid_(check_case), sequences_(sequences_of(check_case)) {
    for (const auto& [name, tensor] : inputs) inputs_[name] = tensor.to_double();
  }

  [[nodiscard]] const std::vector<Sequence>& sequences() const { return sequences_; }
  void enter(std::size_t slot) { slot_ = slot; }

  /// The current sequence's part of an input, all of a shared one, nothing of an absent one.
  [[nodiscard]] oracle::Array read(std::string_view name) const {
    const auto found = inputs_.find(name);
    if (found == inputs_.end()) return {};
    if (extent_of(case_, name) == Extent::shared) return found->second;
    const Slice slice = place(name, found->second.size());
    const auto first = found->second.begin() + static_cast<std::ptrdiff_t>(slice.first);
    return {first, first + static_cast<std::ptrdiff_t>(slice.count)};
  }
  /// `per_unit`: values a token, a slot, or in all, by the tensor's extent.
  void write(const std::string& name, std::int64_t per_unit, const oracle::Array& part) {
    std::vector<double>& whole = outputs[name];
    const Extent extent = extent_of(case_, name);
    const std::int64_t units = extent == Extent::token  ? grid_.batch * grid_.seqlen
                               : extent == Extent::slot ? grid_.n_sequences
                                                        : 1;
    whole.resize(static_cast<std::size_t>(units * per_unit));
    const Slice slice = extent == Extent::shared ? Slice{0, whole.size()} : place(name, whole.size());
    for (std::size_t i = 0; i < slice.count; ++i) whole[slice.first + i] += part.at(i);
  }

  Values outputs;

 private:
  [[nodiscard]] Slice place(std::string_view name, std::size_t count) const {
    return slice_of(grid_, sequences_[slot_], slot_, name, static_cast<std::int64_t>(count));
  }
  const Case& case_;
  Grid grid_;
  std::vector<Sequence> sequences_;
  Values inputs_;
  std::size_t slot_ = 0;
};

void run_conv(const Case& c, Places& places, std::int64_t length) {
  oracle::ConvInput in;
  in.length = length;
  in.dim = c.dim;
  in.width = c.conv_width;
  in.silu = c.silu;
  in.x = places.read("x");
  in.weight = places.read("weight");
  in.bias = places.read("bias");
  in.initial_states = places.read("initial_states");
  const std::int64_t states = c.dim * (c.conv_width - 1);
  if (!is_backward(c.op)) {
    const oracle::ConvOutput out = oracle::conv_forward(in);
    places.write("out", c.dim, out.out);
    if (c.final_states) places.write("final_states", states, out.final_states);
    return;
  }
  const oracle::ConvGradient gradient = oracle::conv_backward(in, places.read("dout"), places.read("dfinal_states"));
  places.write("dx", c.dim, gradient.dx);
  places.write("dweight", c.dim * c.conv_width, gradient.dweight);
  if (c.bias) places.write("dbias", c.dim, gradient.dbias);
  if (c.initial_states) places.write("dinitial_states", states, gradient.dinitial_states);
}

/// Returns the mean of dt*A of the slowest state.
double run_scan(const Case& c, Places& places, std::int64_t length) {
  oracle::ScanInput in;
  in.length = length;
  in.dim = c.dim;
  in.d_state = c.d_state;
  in.groups = c.groups;
  in.softplus = c.softplus;
  in.complex_A = c.complex_A;
  in.constant_B = c.constant_B;
  in.constant_C = c.constant_C;
  in.u = places.read("u");
  in.delta = places.read("delta");
  in.A = places.read("A");
  in.B = places.read("B");
  in.C = places.read("C");
  in.D = places.read("D");
  in.z = places.read("z");
  in.delta_bias = places.read("delta_bias");
  in.initial_states = places.read("initial_states");
  const std::int64_t values = c.d_state * (c.complex_A ? 2 : 1), states = c.dim * values;
  const oracle::ScanOutput out = oracle::scan_forward(in);
  if (!is_backward(c.op)) {
    places.write("out", c.dim, out.out);
    if (c.final_states) places.write("final_states", states, out.final_states);
    return out.mean_dt_A_slowest;
  }
  const oracle::ScanGradient gradient = oracle::scan_backward(in, places.read("dout"), places.read("dfinal_states"));
  places.write("du", c.dim, gradient.du);
  places.write("ddelta", c.dim, gradient.ddelta);
  places.write("dA", states, gradient.dA);
  places.write("dB", c.constant_B ? states : c.groups * values, gradient.dB);
  places.write("dC", c.constant_C ? states : c.groups * values, gradient.dC);
  if (c.D) places.write("dD", c.dim, gradient.dD);
  if (c.z) places.write("dz", c.dim, gradient.dz);
  if (c.delta_bias) places.write("ddelta_bias", c.dim, gradient.ddelta_bias);
  if (c.initial_states) places.write("dinitial_states", states, gradient.dinitial_states);
  return out.mean_dt_A_slowest;
}

}  // namespace

Reference compute_reference(const Case& check_case, const HostTensors& inputs) {
  Places places(check_case, inputs);
  double slowest = -std::numeric_limits<double>::infinity();
  std::int64_t longest = 0;
  for (std::size_t slot = 0; slot < places.sequences().size(); ++slot) {
    const std::int64_t length = places.sequences()[slot].length;
    places.enter(slot);
    longest = std::max(longest, length);
    if (is_scan(check_case.op)) {
      slowest = std::max(slowest, run_scan(check_case, places, length));
    } else {
      run_conv(check_case, places, length);
    }
  }
  Reference reference;
  reference.outputs = std::move(places.outputs);
  reference.reduction = is_scan(check_case.op) ? reduction_length(longest, slowest) : 0;
  return reference;
}

}  // namespace packjit::checking
