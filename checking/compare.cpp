#include "checking/compare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <span>

#include "checking/error_bounds.hpp"
#include "checking/inputs.hpp"

namespace packjit::checking {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

/// The dtype that docs/design.md gives an output.
ElementType expected_type(const Case& check_case, std::string_view tensor) {
  const Extent extent = extent_of(check_case, tensor);
  const bool fp32 = extent == Extent::shared || (extent == Extent::slot && is_scan(check_case.op));
  const bool of_channels = tensor == "dD" || tensor == "ddelta_bias";
  if (check_case.complex_A && fp32 && !of_channels) return ElementType::complex64;
  return fp32 ? ElementType::fp32 : element_type(check_case.dtype);
}

Result result_for(CheckKind kind, const Case& check_case, const std::string& tensor) {
  Result result;
  result.check = kind;
  result.op = check_case.op;
  result.dtype = check_case.dtype;
  result.tensor = tensor;
  result.case_name = check_case.name;
  result.where = "all";
  return result;
}

void raise(Result& result, double error, const std::string& where) {
  // A NaN error must win over every number.
  if (!(error <= result.error)) {
    result.error = error;
    result.where = where;
  }
}

std::string sequence_text(std::size_t slot, const Sequence& sequence) {
  return fmt::format("sequence {} ({} tokens)", slot, sequence.length);
}

/// True for each element of a per-token tensor that belongs to padding.
std::vector<bool> padding_mask(const Case& check_case, std::string_view tensor, std::size_t count) {
  std::vector<bool> mask(count, true);
  const std::vector<Sequence> sequences = sequences_of(check_case);
  const Grid grid(check_case);
  for (std::size_t slot = 0; slot < sequences.size(); ++slot) {
    const Slice slice = slice_of(grid, sequences[slot], slot, tensor, static_cast<std::int64_t>(count));
    std::fill_n(mask.begin() + static_cast<std::ptrdiff_t>(slice.first), slice.count, false);
  }
  return mask;
}

}  // namespace

double bound_of(const Case& check_case, std::string_view tensor, double reduction) {
  const bool constant = (tensor == "dB" || tensor == "dC") && extent_of(check_case, tensor) == Extent::shared;
  return error_bound(check_case.op, check_case.dtype, constant ? "dA" : tensor, reduction);
}

std::vector<Result> compare_with_reference(CheckKind kind, const Case& check_case, const HostTensors& outputs,
                                           const Reference& reference) {
  std::vector<Result> results;
  const std::vector<Sequence> sequences = sequences_of(check_case);
  const Grid grid(check_case);
  for (const auto& [name, expected] : reference.outputs) {
    Result result = result_for(kind, check_case, name);
    result.bound = bound_of(check_case, name, reference.reduction);
    const auto found = outputs.find(name);
    if (found == outputs.end()) {
      raise(result, kNever, "missing");
    } else if (found->second.type != expected_type(check_case, name)) {
      raise(result, kNever, fmt::format("dtype {}", name_of(found->second.type)));
    } else {
      const std::vector<double> actual = found->second.to_double();
      const bool same_size = actual.size() == expected.size();
      raise(result, relative_error(actual, expected), same_size ? "all" : "size");
      if (same_size && extent_of(check_case, name) != Extent::shared) {
        for (std::size_t slot = 0; slot < sequences.size(); ++slot) {
          const Slice slice = slice_of(grid, sequences[slot], slot, name, static_cast<std::int64_t>(actual.size()));
          raise(result,
                relative_error(std::span(actual).subspan(slice.first, slice.count),
                               std::span(expected).subspan(slice.first, slice.count)),
                sequence_text(slot, sequences[slot]));
        }
      }
      if (same_size && extent_of(check_case, name) == Extent::token) {
        const std::vector<bool> padding = padding_mask(check_case, name, actual.size());
        for (std::size_t i = 0; i < actual.size(); ++i) {
          if (padding[i] && actual[i] != 0) raise(result, kNever, "padding");
        }
      }
    }
    results.push_back(std::move(result));
  }
  return results;
}

std::vector<Result> compare_bits(CheckKind kind, const Case& check_case, const HostTensors& a, const HostTensors& b,
                                 std::optional<std::size_t> changed_slot) {
  std::vector<Result> results;
  const std::vector<Sequence> sequences = sequences_of(check_case);
  const Grid grid(check_case);
  for (const auto& [name, first] : a) {
    const Extent extent = extent_of(check_case, name);
    if (changed_slot && extent == Extent::shared) continue;
    Result result = result_for(kind, check_case, name);
    const auto found = b.find(name);
    if (found == b.end() || found->second.bytes.size() != first.bytes.size()) {
      raise(result, kNever, "missing or of another size");
      results.push_back(std::move(result));
      continue;
    }
    const std::size_t width = size_of(first.type), count = first.bytes.size() / width;
    Slice changed;
    if (changed_slot) {
      changed = slice_of(grid, sequences[*changed_slot], *changed_slot, name, static_cast<std::int64_t>(count));
    }
    std::size_t different = 0, first_different = 0;
    for (std::size_t i = 0; i < count; ++i) {
      if (i >= changed.first && i < changed.first + changed.count) continue;
      if (!std::equal(first.bytes.begin() + static_cast<std::ptrdiff_t>(i * width),
                      first.bytes.begin() + static_cast<std::ptrdiff_t>((i + 1) * width),
                      found->second.bytes.begin() + static_cast<std::ptrdiff_t>(i * width))) {
        if (different++ == 0) first_different = i;
      }
    }
    if (different > 0) raise(result, static_cast<double>(different), fmt::format("from element {}", first_different));
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace packjit::checking
