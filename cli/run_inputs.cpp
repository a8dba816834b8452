#include "cli/run_inputs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "cli/safetensors_header.hpp"
#include "generator/ssm_pack.hpp"
#include "runtime/boundaries.hpp"

namespace packjit {
namespace {

constexpr std::string_view kBoundaryNames[] = {"position_indices", "seq_idx", "cu_seqlens"};

class Selection {
 public:
  Selection(const Spec& options, Layout layout, SafetensorsFile file, std::string_view file_name)
      : layout_(layout), file_(std::move(file)), file_name_(file_name), inputs_{{}, options, {}, {}, {}} {}

  RunInputs run(bool rows_are_sequences) {
    read_token_shape();
    read_boundaries(rows_are_sequences);
    read_kinds();
    for (const TensorRule& rule : tensor_rules(spec())) {
      if (!rule.output) take(rule);
    }
    if (!is_backward(spec().op) && inputs_.tensors.contains("initial_states")) spec().values.set("final_states", 1);
    check_groups();
    for (const auto& [name, tensor] : file_.tensors) note_ignored(name);
    for (const auto& [name, dtype] : file_.unsupported) note_ignored(name);
    std::sort(inputs_.ignored.begin(), inputs_.ignored.end());
    return std::move(inputs_);
  }

 private:
  [[nodiscard]] Spec& spec() { return inputs_.spec; }

  [[noreturn]] void fail(std::string_view text) {
    throw std::invalid_argument(fmt::format("{} with {}: {}", name_of(spec().op), file_name_, text));
  }

  /// The symbols of a tensor's shape, in the order in which the file has its dimensions.
  [[nodiscard]] std::vector<std::string_view> symbols_in_file(const TensorRule& rule) const {
    std::vector<std::string_view> symbols = shape_symbols(rule.shape);
    if (rule.shape == "batch seqlen dim" && layout_ == Layout::channel_major) std::swap(symbols[1], symbols[2]);
    return symbols;
  }

  /// "(batch = 2, seqlen = 16, dim)": what is expected, with the sizes that are known.
  [[nodiscard]] std::string expected_shape(const TensorRule& rule) const {
    std::string text;
    for (const std::string_view symbol : symbols_in_file(rule)) {
      text += text.empty() ? "(" : ", ";
      text += known(symbol) ? fmt::format("{} = {}", symbol, inputs_.sizes[symbol]) : std::string(symbol);
    }
    return text + ")";
  }

  /// Sizes are at least 1, so 0 stands for one that is still open; these two can be 0 once they are known.
  [[nodiscard]] bool known(std::string_view symbol) const {
    if (symbol == "n_sequences") return map_known_;
    if (symbol == "history") return inputs_.sizes.conv_width > 0;
    return inputs_.sizes[symbol] > 0;
  }

  void check_supported(std::string_view name, std::string_view expected) {
    const auto it = file_.unsupported.find(name);
    if (it == file_.unsupported.end()) return;
    fail(fmt::format("tensor {} has dtype {}; expected {}", name, quoted_name(it->second), expected));
  }

  /// Batch, seqlen and dim come from the first activation; everything else is held against them.
  void read_token_shape() {
    const TensorRule& rule = tensor_rules(spec().op).front();
    check_supported(rule.name, "F32, F16 or BF16");
    const HostTensor& tensor = find(rule);
    check_shape(rule, tensor);
    try {
      spec().values.set("dtype", static_cast<int>(dtype_of(tensor.type)));
    } catch (const std::invalid_argument& error) {
      fail(fmt::format("tensor {}: {}", rule.name, error.what()));
    }
  }

  /// Whether numbers of the scan are complex, and whether B and C are of channels: A's dtype and their ranks say so.
  /// Whether weights of the convolution are fp32: weight's dtype says so.
  void read_kinds() {
    const auto found = [&](std::string_view name) {
      const auto it = file_.tensors.find(name);
      return it == file_.tensors.end() ? nullptr : &it->second;
    };
    if (!is_scan(spec().op)) {
      const HostTensor* weight = found("weight");
      const bool half = static_cast<Dtype>(spec().values["dtype"]) != Dtype::fp32;
      if (half && weight != nullptr) spec().values.set("fp32_weights", weight->type == ElementType::fp32 ? 1 : 0);
      return;
    }
    if (const HostTensor* A = found("A")) spec().values.set("complex_A", A->type == ElementType::complex64 ? 1 : 0);
    for (const auto& [name, field] : {std::pair{"B", "constant_B"}, std::pair{"C", "constant_C"}}) {
      if (const HostTensor* tensor = found(name)) spec().values.set(field, tensor->shape.size() == 2 ? 1 : 0);
    }
  }

  void read_boundaries(bool rows_are_sequences) {
    for (const std::string_view name : kBoundaryNames) check_supported(name, "I16, U16, I32 or I64");
    const Sizes& sizes = inputs_.sizes;
    try {
      const Boundaries boundaries =
          boundaries_from_tensors(file_.tensors, rows_are_sequences, sizes.batch, sizes.seqlen);
      inputs_.map = build_sequence_map(boundaries, sizes.batch, sizes.seqlen);
    } catch (const std::invalid_argument& error) {
      fail(error.what());
    }
    inputs_.sizes.n_sequences = inputs_.map.n_sequences;
    map_known_ = true;
  }

  const HostTensor& find(const TensorRule& rule) {
    const auto it = file_.tensors.find(rule.name);
    if (it == file_.tensors.end()) {
      fail(fmt::format("tensor {} is missing; expected shape {}", rule.name, expected_shape(rule)));
    }
    return it->second;
  }

  void take(const TensorRule& rule) {
    check_supported(rule.name, rule.complex ? "C64" : rule.always_fp32 ? "F32" : "F32, F16 or BF16");
    const bool optional = !rule.field.empty();
    if (optional) {
      const bool present = file_.tensors.contains(rule.name);
      spec().values.set(rule.field, present ? 1 : keep_if_asked(rule));
      if (!present) return;
    }
    const HostTensor& tensor = find(rule);
    check_shape(rule, tensor);
    check_dtype(rule, tensor);
    inputs_.tensors.emplace(rule.name, std::move(file_.tensors.find(rule.name)->second));
    file_.tensors.erase(file_.tensors.find(rule.name));
  }

  /// No input of a forward operator decides about final_states.
  [[nodiscard]] int keep_if_asked(const TensorRule& rule) {
    return rule.field == "final_states" && !is_backward(spec().op) ? spec().values["final_states"] : 0;
  }

  void check_shape(const TensorRule& rule, const HostTensor& tensor) {
    const std::vector<std::string_view> symbols = symbols_in_file(rule);
    bool fits = tensor.shape.size() == symbols.size();
    for (std::size_t i = 0; fits && i < symbols.size(); ++i) {
      fits = known(symbols[i]) ? tensor.shape[i] == inputs_.sizes[symbols[i]] : tensor.shape[i] > 0;
    }
    if (!fits) {
      fail(fmt::format("tensor {} has shape {}; expected {}, every open size at least 1", rule.name,
                       shape_text(tensor.shape), expected_shape(rule)));
    }
    for (std::size_t i = 0; i < symbols.size(); ++i) {
      if (!known(symbols[i])) learn(rule, symbols[i], tensor.shape[i]);
    }
  }

  void learn(const TensorRule& rule, std::string_view symbol, std::int64_t size) {
    inputs_.sizes[symbol] = size;
    if (symbol == "conv_width") inputs_.sizes.history = size - 1;
    try {
      // Whatever an int cannot hold is out of every field's range too.
      const int value = static_cast<int>(std::min<std::int64_t>(size, 1 << 30));
      if (symbol == "d_state" || symbol == "conv_width") spec().values.set(symbol, value);
      if (symbol == "d_state") {
        inputs_.sizes.n_checkpoints = ssm_checkpoints(inputs_.sizes);
        inputs_.sizes.state_reals = 2 * size;
      }
      if (symbol == "groups") spec().values.set("groups", size > 1 ? 1 : 0);
    } catch (const std::invalid_argument& error) {
      fail(fmt::format("tensor {}: {}", rule.name, error.what()));
    }
  }

  void check_dtype(const TensorRule& rule, const HostTensor& tensor) {
    const ElementType expected = element_type(spec(), rule);
    if (tensor.type == expected) return;
    fail(fmt::format("tensor {} has dtype {}; expected {}{}", rule.name, name_of(tensor.type), name_of(expected),
                     rule.complex       ? ", as A has"
                     : rule.always_fp32 ? ", whatever the activations have"
                                        : fmt::format(", as {} has", tensor_rules(spec().op).front().name)));
  }

  void check_groups() {
    Sizes& sizes = inputs_.sizes;
    if (is_scan(spec().op) && sizes.groups == 0) sizes.groups = 1;  // B and C are both constant
    if (sizes.groups > 0 && sizes.dim % sizes.groups != 0) {
      fail(fmt::format("tensor {} has {} groups; expected a divisor of dim = {}",
                       spec().values["constant_B"] != 0 ? "C" : "B", sizes.groups, sizes.dim));
    }
  }

  void note_ignored(const std::string& name) {
    if (std::find(std::begin(kBoundaryNames), std::end(kBoundaryNames), name) != std::end(kBoundaryNames)) return;
    inputs_.ignored.push_back(name);
  }

  Layout layout_;
  SafetensorsFile file_;
  std::string_view file_name_;
  RunInputs inputs_;
  bool map_known_ = false;
};

}  // namespace

RunInputs select_run_inputs(const Spec& options, Layout layout, bool rows_are_sequences, SafetensorsFile file,
                            std::string_view file_name) {
  return Selection(options, layout, std::move(file), file_name).run(rows_are_sequences);
}

}  // namespace packjit
