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

  /// Of complex numbers, draws the real part, then the imaginary one.
  void add(const std::string& name, ElementType type, std::vector<std::int64_t> shape,
           const std::function<double(RandomStream&)>& draw) {
    RandomStream random(case_.seed, name);
    std::int64_t count = type == ElementType::complex64 ? 2 : 1;
    for (const std::int64_t size : shape) count *= size;
    std::vector<double> values(static_cast<std::size_t>(count));
    for (double& value : values) value = draw(random);
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
  const ElementType dtype = element_type(c.dtype), fp32 = ElementType::fp32;
  const ElementType of_states = c.complex_A ? ElementType::complex64 : fp32;
  Builder builder(c);
  if (is_scan(c.op)) {
    const std::vector<std::int64_t> states = {n_sequences, c.dim, c.d_state};
    builder.add("u", dtype, activation, normal);
    if (!c.softplus) {
      builder.add("delta", dtype, activation, random_step);
      if (c.delta_bias) builder.add("delta_bias", fp32, {c.dim}, [](RandomStream& r) { return 0.1 * random_step(r); });
    } else if (c.delta_bias) {
      builder.add("delta", dtype, activation, scaled(0.3));
      builder.add("delta_bias", fp32, {c.dim}, [](RandomStream& r) { return inverse_softplus(random_step(r)); });
    } else {
      builder.add("delta", dtype, activation, [](RandomStream& r) { return inverse_softplus(random_step(r)); });
    }
    const std::int64_t parts = c.complex_A ? 2 : 1;
    std::int64_t drawn = 0;
    builder.add("A", of_states, {c.dim, c.d_state}, [&](RandomStream& random) {
      const auto n = static_cast<double>(drawn / parts % c.d_state);
      const bool imaginary = drawn++ % parts == 1;
      // Imaginary parts as S4 begins with them, pi * n, but of either sign.
      return imaginary ? random.uniform(-3.0, 3.0) * (n + 1) : -(n + random.uniform(0.5, 1.5));
    });
    for (const auto& [name, constant] : {std::pair{"B", c.constant_B}, std::pair{"C", c.constant_C}}) {
      if (constant) {
        builder.add(name, of_states, {c.dim, c.d_state}, normal);
      } else {
        builder.add(name, dtype, {batch, seqlen, c.groups, parts * c.d_state}, normal);
      }
    }
    if (c.D) builder.add("D", fp32, {c.dim}, normal);
    if (c.z) builder.add("z", dtype, activation, normal);
    if (c.initial_states) builder.add("initial_states", of_states, states, normal);
    if (is_backward(c.op) && c.final_states) builder.add("dfinal_states", of_states, states, normal);
  } else {
    const std::vector<std::int64_t> states = {n_sequences, c.dim, c.conv_width - 1};
    builder.add("x", dtype, activation, normal);
    const ElementType of_weights = c.fp32_weights ? fp32 : dtype;
    builder.add("weight", of_weights, {c.dim, c.conv_width}, scaled(0.5));
    if (c.bias) builder.add("bias", of_weights, {c.dim}, scaled(0.5));
    if (c.initial_states) builder.add("initial_states", dtype, states, normal);
    if (is_backward(c.op) && c.final_states) builder.add("dfinal_states", dtype, states, normal);
  }
  if (is_backward(c.op)) builder.add("dout", dtype, activation, normal);
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
  if (is_of_slots(tensor)) {
    const std::size_t per_slot = static_cast<std::size_t>(count / grid.n_sequences);
    return {slot * per_slot, per_slot};
  }
  const std::int64_t per_token = count / (grid.batch * grid.seqlen);
  const std::int64_t first = (sequence.row * grid.seqlen + sequence.start) * per_token;
  return {static_cast<std::size_t>(first), static_cast<std::size_t>(sequence.length * per_token)};
}

}  // namespace packjit::checking
