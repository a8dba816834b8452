#include "api/tensors.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <string>

#include <fmt/format.h>

#include "api/c_struct.hpp"

namespace packjit::api {
namespace {

/// In the order of PACKJIT_FP32...
constexpr ElementType kTypes[] = {ElementType::fp32,   ElementType::fp16,  ElementType::bf16,  ElementType::int16,
                                  ElementType::uint16, ElementType::int32, ElementType::int64, ElementType::complex64};

struct Member {
  std::string_view tensor;
  std::size_t offset;
};
// NOLINTNEXTLINE(cppcoreguidelines-macro-usage): names what it takes the offset of
#define PACKJIT_MEMBER(Struct, member) \
  { #member, offsetof(Struct, member) }
constexpr Member kConvForward[] = {
    PACKJIT_MEMBER(packjit_conv1d_forward_tensors, x),
    PACKJIT_MEMBER(packjit_conv1d_forward_tensors, weight),
    PACKJIT_MEMBER(packjit_conv1d_forward_tensors, bias),
    PACKJIT_MEMBER(packjit_conv1d_forward_tensors, initial_states),
    PACKJIT_MEMBER(packjit_conv1d_forward_tensors, out),
    PACKJIT_MEMBER(packjit_conv1d_forward_tensors, final_states),
};
constexpr Member kConvBackward[] = {
    PACKJIT_MEMBER(packjit_conv1d_backward_tensors, x),
    PACKJIT_MEMBER(packjit_conv1d_backward_tensors, weight),
    PACKJIT_MEMBER(packjit_conv1d_backward_tensors, bias),
    PACKJIT_MEMBER(packjit_conv1d_backward_tensors, initial_states),
    PACKJIT_MEMBER(packjit_conv1d_backward_tensors, dout),
    PACKJIT_MEMBER(packjit_conv1d_backward_tensors, dfinal_states),
    PACKJIT_MEMBER(packjit_conv1d_backward_tensors, dx),
    PACKJIT_MEMBER(packjit_conv1d_backward_tensors, dweight),
    PACKJIT_MEMBER(packjit_conv1d_backward_tensors, dbias),
    PACKJIT_MEMBER(packjit_conv1d_backward_tensors, dinitial_states),
};
constexpr Member kSsmForward[] = {
    PACKJIT_MEMBER(packjit_ssm_forward_tensors, u),
    PACKJIT_MEMBER(packjit_ssm_forward_tensors, delta),
    PACKJIT_MEMBER(packjit_ssm_forward_tensors, A),
    PACKJIT_MEMBER(packjit_ssm_forward_tensors, B),
    PACKJIT_MEMBER(packjit_ssm_forward_tensors, C),
    PACKJIT_MEMBER(packjit_ssm_forward_tensors, D),
    PACKJIT_MEMBER(packjit_ssm_forward_tensors, z),
    PACKJIT_MEMBER(packjit_ssm_forward_tensors, delta_bias),
    PACKJIT_MEMBER(packjit_ssm_forward_tensors, initial_states),
    PACKJIT_MEMBER(packjit_ssm_forward_tensors, out),
    PACKJIT_MEMBER(packjit_ssm_forward_tensors, final_states),
    PACKJIT_MEMBER(packjit_ssm_forward_tensors, checkpoints),
};
constexpr Member kSsmBackward[] = {
    PACKJIT_MEMBER(packjit_ssm_backward_tensors, u),
    PACKJIT_MEMBER(packjit_ssm_backward_tensors, delta),
    PACKJIT_MEMBER(packjit_ssm_backward_tensors, A),
    PACKJIT_MEMBER(packjit_ssm_backward_tensors, B),
    PACKJIT_MEMBER(packjit_ssm_backward_tensors, C),
    PACKJIT_MEMBER(packjit_ssm_backward_tensors, D),
    PACKJIT_MEMBER(packjit_ssm_backward_tensors, z),
    PACKJIT_MEMBER(packjit_ssm_backward_tensors, delta_bias),
    PACKJIT_MEMBER(packjit_ssm_backward_tensors, initial_states),
    PACKJIT_MEMBER(packjit_ssm_backward_tensors, dout),
    PACKJIT_MEMBER(packjit_ssm_backward_tensors, dfinal_states),
    PACKJIT_MEMBER(packjit_ssm_backward_tensors, checkpoints),
    PACKJIT_MEMBER(packjit_ssm_backward_tensors, du),
    PACKJIT_MEMBER(packjit_ssm_backward_tensors, ddelta),
    PACKJIT_MEMBER(packjit_ssm_backward_tensors, dA),
    PACKJIT_MEMBER(packjit_ssm_backward_tensors, dB),
    PACKJIT_MEMBER(packjit_ssm_backward_tensors, dC),
    PACKJIT_MEMBER(packjit_ssm_backward_tensors, dD),
    PACKJIT_MEMBER(packjit_ssm_backward_tensors, dz),
    PACKJIT_MEMBER(packjit_ssm_backward_tensors, ddelta_bias),
    PACKJIT_MEMBER(packjit_ssm_backward_tensors, dinitial_states),
};
#undef PACKJIT_MEMBER

std::vector<std::size_t> offsets_of(Operator op, std::span<const Member> members) {
  std::vector<std::size_t> offsets;
  for (const TensorRule& rule : tensor_rules(op)) {
    const auto member = std::ranges::find(members, rule.name, &Member::tensor);
    if (member == members.end()) {
      throw std::logic_error(fmt::format("{}: the C struct has no tensor {}", name_of(op), rule.name));
    }
    offsets.push_back(member->offset);
  }
  return offsets;
}

/// Of one element, in bytes. A complex number is two floats.
std::size_t alignment_of(ElementType type) {
  return size_of(type == ElementType::complex64 ? ElementType::fp32 : type);
}

}  // namespace

ElementType element_type(std::int32_t dtype, std::string_view what) {
  if (dtype >= 1 && dtype <= static_cast<std::int32_t>(std::size(kTypes))) return kTypes[dtype - 1];
  throw std::invalid_argument(fmt::format(
      "{} is {}, which stands for no dtype; expected PACKJIT_FP32 (1) to PACKJIT_COMPLEX64 (8)", what, dtype));
}

std::int32_t c_dtype(ElementType type) {
  return static_cast<std::int32_t>(std::ranges::find(kTypes, type) - std::begin(kTypes)) + 1;
}

void check_tensor(const packjit_tensor* tensor, std::string_view name) {
  const auto refuse = [&](const std::string& what) {
    throw std::invalid_argument(fmt::format("tensor {}: {}", name, what));
  };
  if (tensor == nullptr) refuse("NULL was given");
  ElementType type{};
  try {
    if (tensor->struct_size != sizeof(packjit_tensor)) static_cast<void>(read_struct(tensor, "packjit_tensor"));
    type = element_type(tensor->dtype, "dtype");
  } catch (const std::invalid_argument& error) {
    refuse(error.what());
  }
  if (tensor->rank < 1 || tensor->rank > 4) refuse(fmt::format("rank is {}, expected 1 to 4", tensor->rank));
  bool empty = false;
  for (std::int32_t i = 0; i < tensor->rank; ++i) {
    if (tensor->shape[i] < 0) refuse(fmt::format("the size of dimension {} is {}", i, tensor->shape[i]));
    empty = empty || tensor->shape[i] == 0;
  }
  if (empty) return;
  if (tensor->data == nullptr) refuse("data is NULL");
  const std::size_t alignment = alignment_of(type);
  if (const auto past = reinterpret_cast<std::uintptr_t>(tensor->data) % alignment; past != 0) {
    refuse(
        fmt::format("data is {}, {} bytes past a multiple of {}; {} needs an address that is a multiple of {}: copy "
                    "it to one",
                    fmt::ptr(tensor->data), past, alignment, name_of(type), alignment));
  }
}

TensorView view_of(const packjit_tensor& tensor, std::string_view name) {
  check_tensor(&tensor, name);
  return {tensor.data,
          element_type(tensor.dtype, "dtype"),
          {tensor.shape, tensor.shape + tensor.rank},
          {tensor.stride, tensor.stride + tensor.rank}};
}

HostTensor host_copy(const packjit_tensor* tensor, std::string_view name) {
  check_tensor(tensor, name);
  const TensorView view = view_of(*tensor, name);
  static_cast<void>(count_of(view.size));  // throws where 63 bits are too few
  std::int64_t dense = 1;
  for (std::size_t i = view.size.size(); i-- > 0;) {
    if (view.size[i] > 1 && view.stride[i] != dense) {
      throw std::invalid_argument(fmt::format(
          "tensor {}: dimension {} has stride {}, expected {}: boundaries are dense", name, i, view.stride[i], dense));
    }
    dense *= view.size[i];
  }
  HostTensor copy = HostTensor::zeros(view.type, view.size);
  if (!copy.bytes.empty()) std::memcpy(copy.bytes.data(), view.data, copy.bytes.size());
  return copy;
}

std::span<const std::size_t> tensor_offsets(Operator op) {
  // Never destroyed: static objects of the application may still call while the process ends.
  static const auto* const kOffsets = new std::array<std::vector<std::size_t>, 4>{
      offsets_of(Operator::conv1d_pack_fwd, kConvForward), offsets_of(Operator::conv1d_pack_bwd, kConvBackward),
      offsets_of(Operator::ssm_pack_fwd, kSsmForward), offsets_of(Operator::ssm_pack_bwd, kSsmBackward)};
  return kOffsets->at(static_cast<std::size_t>(op));
}

}  // namespace packjit::api
