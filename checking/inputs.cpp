#include "checking/inputs.hpp"

#include <cmath>
#include <functional>

#include "checking/random.hpp"

namespace packjit::checking {

namespace {

double inverse_softplus(double y) { return std::log(std::expm1(y)); }

/// A step as trained models have it, log-uniform.
double random_step(RandomStream& random) { return std::exp(random.uniform(std::log(0.001), std::log(0.1))); }

class Builder {
 public:
  explicit Builder(const Case& check_case) : case_(check_case) {}

  void add(const std::string& name, bool fp32, std::vector<std::int64_t> shape,
           const std::function<double(RandomStream&)>& draw) {
    RandomStream random(case_.seed, name);
    std::int64_t count = 1;
    for (const std::int64_t size : shape) count *= size;
    std::vector<double> values(static_cast<std::size_t>(count));
    for (double& value : values) value = draw(random);
    const ElementType type = fp32 ? ElementType::fp32 : element_type(case_.dtype);
    tensors_[name] = HostTensor::from_double(type, std::move(shape), values);
  }
  HostTensors take() { return std::move(tensors_); }

 private:
  const Case& case_;
  HostTensors tensors_;
};

}  // namespace

HostTensors make_inputs(const Case& c) {
  validate(c);
  const auto normal = [](RandomStream& random) { return random.normal(); };
  const auto scaled = [](double scale) { return [scale](RandomStream& random) { return scale * random.normal(); }; };
  const std::int64_t batch = c.batch(), seqlen = c.seqlen();
  const auto n_sequences = static_cast<std::int64_t>(sequences_of(c).size());
  const std::vector<std::int64_t> activation = {batch, seqlen, c.dim};
  Builder builder(c);
  if (is_scan(c.op)) {
    const std::vector<std::int64_t> states = {n_sequences, c.dim, c.d_state};
    builder.add("u", false, activation, normal);
    if (!c.softplus) {
      builder.add("delta", false, activation, random_step);
      if (c.delta_bias) builder.add("delta_bias", true, {c.dim}, [](RandomStream& r) { return 0.1 * random_step(r); });
    } else if (c.delta_bias) {
      builder.add("delta", false, activation, scaled(0.3));
      builder.add("delta_bias", true, {c.dim}, [](RandomStream& r) { return inverse_softplus(random_step(r)); });
    } else {
      builder.add("delta", false, activation, [](RandomStream& r) { return inverse_softplus(random_step(r)); });
    }
    std::int64_t element = 0;
    builder.add("A", true, {c.dim, c.d_state}, [&](RandomStream& random) {
      const auto n = static_cast<double>(element++ % c.d_state);
      return -(n + random.uniform(0.5, 1.5));
    });
    builder.add("B", false, {batch, seqlen, c.groups, c.d_state}, normal);
    builder.add("C", false, {batch, seqlen, c.groups, c.d_state}, normal);
    if (c.D) builder.add("D", true, {c.dim}, normal);
    if (c.z) builder.add("z", false, activation, normal);
    if (c.initial_states) builder.add("initial_states", true, states, normal);
    if (is_backward(c.op) && c.final_states) builder.add("dfinal_states", true, states, normal);
  } else {
    const std::vector<std::int64_t> states = {n_sequences, c.dim, c.conv_width - 1};
    builder.add("x", false, activation, normal);
    builder.add("weight", false, {c.dim, c.conv_width}, scaled(0.5));
    if (c.bias) builder.add("bias", false, {c.dim}, scaled(0.5));
    if (c.initial_states) builder.add("initial_states", false, states, normal);
    if (is_backward(c.op) && c.final_states) builder.add("dfinal_states", false, states, normal);
  }
  if (is_backward(c.op)) builder.add("dout", false, activation, normal);
  return builder.take();
}

HostTensor swap_token_and_channel(const HostTensor& tensor) {
  HostTensor swapped = tensor;
  const std::size_t width = size_of(tensor.type);
  const auto batch = static_cast<std::size_t>(tensor.shape[0]), rows = static_cast<std::size_t>(tensor.shape[1]),
             columns = static_cast<std::size_t>(tensor.shape[2]);
  swapped.shape = {tensor.shape[0], tensor.shape[2], tensor.shape[1]};
  for (std::size_t b = 0; b < batch; ++b) {
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t c = 0; c < columns; ++c) {
        const std::size_t from = ((b * rows + r) * columns + c) * width, to = ((b * columns + c) * rows + r) * width;
        for (std::size_t k = 0; k < width; ++k) swapped.bytes[to + k] = tensor.bytes[from + k];
      }
    }
  }
  return swapped;
}

Grid::Grid(const Case& check_case)
    : batch(check_case.batch()),
      seqlen(check_case.seqlen()),
      n_sequences(static_cast<std::int64_t>(sequences_of(check_case).size())) {}

Slice slice_of(const Grid& grid, const Sequence& sequence, std::size_t slot, std::string_view tensor,
               std::int64_t count) {
  if (extent_of(tensor) == Extent::slot) {
    const std::size_t per_slot = static_cast<std::size_t>(count / grid.n_sequences);
    return {slot * per_slot, per_slot};
  }
  const std::int64_t per_token = count / (grid.batch * grid.seqlen);
  const std::int64_t first = (sequence.row * grid.seqlen + sequence.start) * per_token;
  return {static_cast<std::size_t>(first), static_cast<std::size_t>(sequence.length * per_token)};
}

}  // namespace packjit::checking
