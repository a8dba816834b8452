#include "tuning/batch_tensors.hpp"

#include <algorithm>
#include <random>

#include "tuning/operator_choices.hpp"

namespace packjit {
namespace {

TensorView dense_view(const TensorRule& rule, const Spec& spec, const Sizes& sizes, void* data) {
  TensorView view;
  view.data = data;
  view.type = rule.always_fp32 ? ElementType::fp32 : element_type(static_cast<Dtype>(spec.values["dtype"]));
  for (const std::string_view symbol : shape_symbols(rule.shape)) view.size.push_back(sizes[symbol]);
  view.stride.assign(view.size.size(), 1);
  for (std::size_t i = view.size.size(); i-- > 1;) view.stride[i - 1] = view.stride[i] * view.size[i];
  return view;
}

// dt = softplus(delta + delta_bias) between about 0.001 and 0.1, A = -(1..d_state), as a Mamba model starts.
double value_of(std::string_view name, double normal, std::int64_t index, std::int64_t d_state) {
  if (name == "delta_bias") return -4.0 + normal;
  if (name == "A") return -1.0 - static_cast<double>(index % d_state);
  return normal;
}

}  // namespace

BatchTensors::BatchTensors(Device& device, std::span<const Spec> specs, const Sizes& sizes, int sets,
                           std::uint64_t seed)
    : sets_(static_cast<std::size_t>(sets)) {
  for (const Spec& spec : specs) {
    for (const TensorRule& rule : tensor_rules(spec)) {
      if (!has_tensor(spec, rule)) continue;
      for (TensorViews& views : sets_) {
        if (views.contains(rule.name)) continue;
        buffers_.emplace_back(device, static_cast<std::size_t>(element_count(rule, sizes) * element_bytes(rule, spec)));
        views.emplace(rule.name, dense_view(rule, spec, sizes, buffers_.back().data()));
      }
      if (!rule.output) fill(device, rule, sizes.d_state, seed);
    }
  }
}

TensorViews BatchTensors::views(const Spec& spec, int set) const {
  TensorViews result;
  for (const TensorRule& rule : tensor_rules(spec)) {
    if (has_tensor(spec, rule)) result.emplace(rule.name, sets_[static_cast<std::size_t>(set)].find(rule.name)->second);
  }
  return result;
}

void BatchTensors::fill(Device& device, const TensorRule& rule, std::int64_t d_state, std::uint64_t seed) {
  constexpr std::int64_t kChunk = 1 << 16;  // elements; random numbers are slow, so large tensors repeat them
  const TensorView& first = sets_.front().find(rule.name)->second;
  const std::int64_t count = count_of(first.size);
  std::mt19937_64 random(seed + std::hash<std::string_view>{}(rule.name));
  std::normal_distribution<double> normal;
  std::vector<double> values(static_cast<std::size_t>(std::min(count, kChunk)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = value_of(rule.name, normal(random), static_cast<std::int64_t>(i), d_state);
  }
  const HostTensor chunk = HostTensor::from_double(first.type, {static_cast<std::int64_t>(values.size())}, values);
  const auto total = static_cast<std::size_t>(count) * size_of(first.type);
  auto* const source = static_cast<std::byte*>(first.data);
  device.write(source, chunk.bytes.data(), chunk.bytes.size());
  for (std::size_t done = chunk.bytes.size(); done < total; done *= 2) {
    device.copy(source + done, source, std::min(done, total - done));
  }
  for (const TensorViews& views : sets_) {
    void* const data = views.find(rule.name)->second.data;
    if (data != source) device.copy(data, source, total);
  }
}

TensorViews sequence_views(const TensorViews& views, Operator op, const SequencePlace& place) {
  TensorViews result = views;
  for (const TensorRule& rule : tensor_rules(op)) {
    const auto found = result.find(rule.name);
    if (found == result.end() || !rule.shape.starts_with("batch seqlen")) continue;
    TensorView& view = found->second;
    const std::int64_t elements = place.row * view.stride[0] + place.start * view.stride[1];
    view.data = static_cast<std::byte*>(view.data) + elements * static_cast<std::int64_t>(size_of(view.type));
    view.size[0] = 1;
    view.size[1] = place.length;
  }
  return result;
}

}  // namespace packjit
