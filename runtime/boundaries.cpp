#include "runtime/boundaries.hpp"

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace packjit {
namespace {

using Form = Boundaries::Form;

constexpr std::int64_t kInt16Saturation = 32766;
constexpr std::int64_t kUint16Saturation = 65534;
constexpr std::int64_t kUint16Padding = 65535;

/// What a map says about one token, in words.
std::string token_text(const SequenceMap& map, std::size_t token) {
  if (map.slot[token] < 0) return "padding";
  return fmt::format("token {} of sequence {}", map.run_index[token], map.slot[token]);
}

void check_agreement(Form first_form, const SequenceMap& first, Form second_form, const SequenceMap& second) {
  if (first == second) return;
  for (std::size_t i = 0; i < first.slot.size(); ++i) {
    if (first.slot[i] == second.slot[i] && first.run_index[i] == second.run_index[i]) continue;
    const auto seqlen = static_cast<std::size_t>(first.seqlen);
    throw std::invalid_argument(
        fmt::format("two forms of boundaries disagree, first at row {}, token {}: {} in {}, {} in {}; give one of "
                    "them, or two that "
                    "agree",
                    i / seqlen, i % seqlen, token_text(first, i), name_of(first_form), token_text(second, i),
                    name_of(second_form)));
  }
  throw std::invalid_argument(fmt::format(
      "two forms of boundaries disagree behind the last token: {} sequences in {}, {} in {}, which differ in "
      "empty sequences; give one of them, or two that agree",
      first.n_sequences, name_of(first_form), second.n_sequences, name_of(second_form)));
}

}  // namespace

void check_boundary_tensor(Form form, ElementType type, const std::vector<std::int64_t>& shape, std::int64_t batch,
                           std::int64_t seqlen) {
  if (form == Form::rows) {
    throw std::invalid_argument("boundaries by rows come without a tensor; expected a form that has one");
  }
  if (!is_integer(type)) {
    throw std::invalid_argument(
        fmt::format("{} has dtype {}; expected int16, uint16, int32 or int64", name_of(form), name_of(type)));
  }
  if (form == Form::cu_seqlens) {
    if (shape.size() != 1) {
      throw std::invalid_argument(
          fmt::format("cu_seqlens has shape {}; expected one dimension, (n_sequences + 1)", shape_text(shape)));
    }
  } else if (shape != std::vector{batch, seqlen}) {
    throw std::invalid_argument(fmt::format("{} has shape {}; expected (batch, seqlen) = {}", name_of(form),
                                            shape_text(shape), shape_text({batch, seqlen})));
  }
}

std::int64_t saturation_of(Form form, ElementType type) {
  if (form != Form::position_indices) return 0;
  if (type == ElementType::int16) return kInt16Saturation;
  return type == ElementType::uint16 ? kUint16Saturation : 0;
}

Boundaries boundaries_from_tensor(Form form, const HostTensor& tensor, std::int64_t batch, std::int64_t seqlen) {
  check_boundary_tensor(form, tensor.type, tensor.shape, batch, seqlen);
  Boundaries boundaries{form, tensor.to_int64(), saturation_of(form, tensor.type)};
  if (form != Form::cu_seqlens && tensor.type == ElementType::uint16) {
    for (std::int64_t& value : boundaries.values) {
      if (value == kUint16Padding) value = -1;
    }
  }
  return boundaries;
}

Boundaries boundaries_from_tensors(const HostTensors& tensors, bool rows_are_sequences, std::int64_t batch,
                                   std::int64_t seqlen) {
  std::vector<Boundaries> given;
  for (const Form form : {Form::position_indices, Form::seq_idx, Form::cu_seqlens}) {
    const auto found = tensors.find(name_of(form));
    if (found != tensors.end()) given.push_back(boundaries_from_tensor(form, found->second, batch, seqlen));
  }
  if (rows_are_sequences) given.push_back({Form::rows, {}, 0});
  if (given.empty()) {
    throw std::invalid_argument(
        "packed operators need boundaries, and none were given: add position_indices, seq_idx or cu_seqlens, or say "
        "that "
        "every row is one sequence (--rows)");
  }
  if (given.size() > 1) {
    const SequenceMap first = build_sequence_map(given.front(), batch, seqlen);
    for (std::size_t i = 1; i < given.size(); ++i) {
      check_agreement(given.front().form, first, given[i].form, build_sequence_map(given[i], batch, seqlen));
    }
  }
  return std::move(given.front());
}

}  // namespace packjit
