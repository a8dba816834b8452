// run_on_host_tensors: one operator on tensors in host memory, with poisoned outputs and guard zones.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "generator/ssm_pack.hpp"
#include "runtime/config_choice.hpp"
#include "runtime/edited_source.hpp"
#include "runtime/operator_call.hpp"

namespace packjit {
namespace {

constexpr unsigned char kPoison = 0xFF;  // a NaN in every floating-point type

/// A tensor's copy on the device and the view that the operator sees.
struct Placed {
  Buffer buffer;
  TensorView view;
};

/// Where the elements of a dense host tensor stand in device memory: `stride` is in the order of the host tensor's
/// dimensions, in elements, after `offset` elements.
struct Placement {
  std::vector<std::int64_t> stride;
  std::int64_t offset = 0;
  std::int64_t elements = 0;  // of the whole buffer
};

Placement placement_of(const std::vector<std::int64_t>& shape, bool with_gaps) {
  Placement place;
  place.stride.resize(shape.size());
  // Gaps of sizes that share no factor with an access, and a start that is aligned to one element only.
  std::int64_t next = with_gaps ? 2 : 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    place.stride[i] = next;
    next = next * shape[i] + (with_gaps ? 3 : 0);
  }
  place.offset = with_gaps ? 1 : 0;
  place.elements = next + place.offset;
  return place;
}

bool is_dense(const Placement& place) {
  return place.offset == 0 && (place.stride.empty() || place.stride.back() == 1);
}

/// Calls visit(dense index, placed index) for each element.
template <typename Visit>
void for_each_element(const std::vector<std::int64_t>& shape, const Placement& place, Visit visit) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  for (std::int64_t dense = 0; dense < count; ++dense) {
    std::int64_t rest = dense, at = place.offset;
    for (std::size_t i = shape.size(); i-- > 0;) {
      at += rest % shape[i] * place.stride[i];
      rest /= shape[i];
    }
    visit(static_cast<std::size_t>(dense), static_cast<std::size_t>(at));
  }
}

class Call {
 public:
  Call(Device& device, const HostCall& call, const HostTensors& inputs, const SequenceMap& map)
      : device_(device), call_(call), inputs_(inputs), map_(map), spec_(call.spec) {}

  HostTensors run() {
    infer_spec();
    const std::vector<TensorRule> rules = tensor_rules(spec_);
    for (const TensorRule& rule : rules) {
      const auto it = inputs_.find(rule.name);
      if (!rule.output && it != inputs_.end()) place(rule, it->second, true);
    }
    Sizes sizes = output_sizes();
    for (const TensorRule& rule : rules) {
      if (rule.output && (rule.field.empty() || spec_.values[rule.field] != 0)) place(rule, output(rule, sizes), false);
    }
    TensorViews views;
    for (const auto& [name, placed] : placed_) views.emplace(name, placed.view);
    const Workload work{map_.batch * map_.seqlen, map_.n_sequences, sizes.dim, map_.max_seqlen};
    Config config = call_.config ? *call_.config : chosen_config(views, work);
    if (call_.source) {
      config = edited_config(config, views);
    } else {
      specialise(spec_, config, views);
    }
    const MappedSequences sequences(device_, map_, storage_of(spec_));
    Buffer workspace = poisoned_workspace(config, views, sequences);
    std::shared_ptr<const Module> edited;
    if (call_.source) edited = device_.load_text(*call_.source);
    run_operator(device_, spec_, config, views, sequences, workspace, edited.get());
    device_.synchronize();
    device_.check_guards();
    return collect();
  }

 private:
  /// By the layout that the call has, too.
  Config chosen_config(const TensorViews& views, const Workload& work) const {
    Spec spec = spec_;
    Config any(spec.op);
    specialise(spec, any, views);
    return choose_config(spec, device_.info(), work).config;
  }

  /// The Config that the hand-edited source was made with, once it is known that the source serves this call: launches
  /// follow the Config, so any other one would be silently wrong. Completes the Spec as specialise() does.
  Config edited_config(Config wanted, const TensorViews& views) {
    const Target target = device_.info().kind == "host" ? Target::host : Target::cuda;
    const std::string& text = *call_.source;
    specialise(spec_, wanted, views);
    SourceOrigin origin = origin_of(text, spec_, wanted, target);
    int vector = wanted.values["vector"];
    if (origin.spec.op == spec_.op) {
      Config widest = origin.config;
      specialise(spec_, widest, views);
      vector = widest.values["vector"];
    }
    require_fitting(origin, spec_, vector, target);
    require_target(text, origin, target);
    return std::move(origin.config);
  }

  [[nodiscard]] bool transposed(const TensorRule& rule) const {
    return rule.shape == "batch seqlen dim" && call_.layout == Layout::channel_major;
  }

  /// Spec fields that follow from which tensors there are, and from their dtype and sizes.
  void infer_spec() {
    const bool backward = is_backward(spec_.op);
    const char* main_name = is_scan(spec_.op) ? "u" : "x";
    if (const auto it = inputs_.find(main_name); it != inputs_.end()) {
      spec_.values.set("dtype", static_cast<int>(dtype_of(it->second.type)));
    }
    for (const TensorRule& rule : tensor_rules(spec_.op)) {
      if (!rule.output && !rule.field.empty()) spec_.values.set(rule.field, inputs_.contains(rule.name) ? 1 : 0);
    }
    if (!backward) {
      const bool implied = inputs_.contains("initial_states") && !call_.final_states_only_if_asked;
      spec_.values.set("final_states", call_.final_states || implied ? 1 : 0);
    }
    const auto [name, dimension] = is_scan(spec_.op) ? std::pair{"A", "d_state"} : std::pair{"weight", "conv_width"};
    if (const auto it = inputs_.find(name); it != inputs_.end() && it->second.shape.size() == 2) {
      const std::int64_t size = it->second.shape[1];
      // An int holds every size that is in range; what is not is clipped and refused by the field.
      spec_.values.set(dimension, static_cast<int>(std::clamp<std::int64_t>(size, 0, 1 << 20)));
    }
    if (!is_scan(spec_.op)) {
      const auto it = inputs_.find("weight");
      const bool half = static_cast<Dtype>(spec_.values["dtype"]) != Dtype::fp32;  // else there is nothing to tell
      if (half && it != inputs_.end()) spec_.values.set("fp32_weights", it->second.type == ElementType::fp32 ? 1 : 0);
      return;
    }
    if (const auto it = inputs_.find("A"); it != inputs_.end()) {
      spec_.values.set("complex_A", it->second.type == ElementType::complex64 ? 1 : 0);
    }
    for (const auto& [tensor, constant] : {std::pair{"B", "constant_B"}, std::pair{"C", "constant_C"}}) {
      const auto it = inputs_.find(tensor);
      if (it == inputs_.end()) continue;
      spec_.values.set(constant, it->second.shape.size() == 2 ? 1 : 0);
      if (it->second.shape.size() == 4) spec_.values.set("groups", it->second.shape[2] > 1 ? 1 : 0);
    }
  }

  void place(const TensorRule& rule, const HostTensor& tensor, bool copy) {
    const bool with_gaps = call_.layout == Layout::strided && rule.shape.starts_with("batch seqlen");
    const Placement place = placement_of(tensor.shape, with_gaps);
    const std::size_t element = size_of(tensor.type);
    const std::size_t bytes = static_cast<std::size_t>(place.elements) * element;
    Placed placed{Buffer(device_, std::max<std::size_t>(bytes, 1)), {}};
    device_.fill(placed.buffer.data(), kPoison, placed.buffer.size());
    if (copy && is_dense(place)) {
      device_.write(placed.buffer.data(), tensor.bytes.data(), tensor.bytes.size());
    } else if (copy) {
      std::vector<std::byte> image(bytes, std::byte{kPoison});
      for_each_element(tensor.shape, place, [&](std::size_t dense, std::size_t at) {
        std::memcpy(image.data() + at * element, tensor.bytes.data() + dense * element, element);
      });
      device_.write(placed.buffer.data(), image.data(), bytes);
    }
    placed.view.data = static_cast<std::byte*>(placed.buffer.data()) + static_cast<std::size_t>(place.offset) * element;
    placed.view.type = tensor.type;
    placed.view.size = tensor.shape;
    placed.view.stride = place.stride;
    if (transposed(rule) && placed.view.size.size() == 3) {
      std::swap(placed.view.size[1], placed.view.size[2]);
      std::swap(placed.view.stride[1], placed.view.stride[2]);
    }
    placed_.emplace(rule.name, std::move(placed));
    placements_.emplace(rule.name, place);
    if (!copy) outputs_.emplace(rule.name, tensor);
  }

  /// Sizes as far as the inputs tell them; what is wrong or missing is reported by bind_sizes later.
  [[nodiscard]] Sizes output_sizes() const {
    Sizes sizes;
    sizes.batch = map_.batch;
    sizes.seqlen = map_.seqlen;
    sizes.n_sequences = map_.n_sequences;
    for (const TensorRule& rule : tensor_rules(spec_)) {
      const auto it = placed_.find(rule.name);
      const std::vector<std::string_view> symbols = shape_symbols(rule.shape);
      if (it == placed_.end() || it->second.view.size.size() != symbols.size()) continue;
      for (std::size_t i = 0; i < symbols.size(); ++i) {
        if (sizes[symbols[i]] == 0) sizes[symbols[i]] = it->second.view.size[i];
      }
    }
    sizes.n_checkpoints = ssm_checkpoints(sizes);
    if (!is_scan(spec_.op)) sizes.history = std::max<std::int64_t>(sizes.conv_width - 1, 0);
    return sizes;
  }

  [[nodiscard]] HostTensor output(const TensorRule& rule, const Sizes& sizes) const {
    std::vector<std::int64_t> shape;
    for (std::string_view symbol : shape_symbols(rule.shape)) shape.push_back(sizes[symbol]);
    if (transposed(rule)) std::swap(shape[1], shape[2]);
    return HostTensor::zeros(element_type(spec_, rule), shape);
  }

  Buffer poisoned_workspace(const Config& config, const TensorViews& views, const MappedSequences& sequences) {
    Problem problem;
    problem.sizes = bind_sizes(spec_, views, sequences.batch, sequences.seqlen, sequences.n_sequences);
    problem.items = sequences.items;
    problem.segments = sequences.segments;
    const auto bytes = static_cast<std::size_t>(plan(spec_, config, problem).workspace_bytes);
    Buffer workspace(device_, std::max<std::size_t>(bytes, 1));
    device_.fill(workspace.data(), kPoison, workspace.size());
    return workspace;
  }

  HostTensors collect() {
    HostTensors results;
    for (auto& entry : outputs_) {
      const std::string& name = entry.first;
      HostTensor& tensor = entry.second;
      const Placed& placed = placed_.at(name);
      const Placement& place = placements_.at(name);
      if (is_dense(place)) {
        device_.read(tensor.bytes.data(), placed.buffer.data(), tensor.bytes.size());
      } else {
        const std::size_t element = size_of(tensor.type);
        std::vector<std::byte> image(static_cast<std::size_t>(place.elements) * element);
        device_.read(image.data(), placed.buffer.data(), image.size());
        for_each_element(tensor.shape, place, [&](std::size_t dense, std::size_t at) {
          std::memcpy(tensor.bytes.data() + dense * element, image.data() + at * element, element);
        });
      }
      results.emplace(name, std::move(tensor));
    }
    return results;
  }

  Device& device_;
  const HostCall& call_;
  const HostTensors& inputs_;
  const SequenceMap& map_;
  Spec spec_;
  std::map<std::string, Placed, std::less<>> placed_;
  std::map<std::string, Placement, std::less<>> placements_;
  HostTensors outputs_;
};

}  // namespace

HostTensors run_on_host_tensors(Device& device, const HostCall& call, const HostTensors& inputs,
                                const SequenceMap& map) {
  return Call(device, call, inputs, map).run();
}

}  // namespace packjit
