#include "checking/rearrange.hpp"

#include <algorithm>
#include <cstring>

#include "checking/inputs.hpp"

namespace packjit::checking {

namespace {

/// The shape that a tensor of `from` has in `to`.
std::vector<std::int64_t> shape_in(const Case& to, std::string_view name, std::vector<std::int64_t> shape) {
  if (extent_of(to, name) == Extent::token) {
    shape[0] = to.batch();
    shape[1] = to.seqlen();
  } else if (is_of_slots(name)) {
    shape[0] = static_cast<std::int64_t>(sequences_of(to).size());
  }
  return shape;
}

/// Places of one piece in the part's tensor and in the whole's, elements.
struct Places {
  std::size_t in_part = 0, in_whole = 0, count = 0;
};

std::vector<Places> places(const Case& whole, const Part& part, std::string_view name, std::int64_t part_count,
                           std::int64_t whole_count) {
  const std::vector<Sequence> in_whole = sequences_of(whole), in_part = sequences_of(part.check_case);
  const Grid whole_grid(whole), part_grid(part.check_case);
  std::vector<Places> result;
  for (std::size_t p = 0; p < part.pieces.size(); ++p) {
    const Piece& piece = part.pieces[p];
    Sequence origin = in_whole[piece.slot];
    origin.start += piece.offset;
    origin.length = piece.length;
    const Slice from = slice_of(part_grid, in_part[p], p, name, part_count);
    result.push_back({from.first, slice_of(whole_grid, origin, piece.slot, name, whole_count).first, from.count});
  }
  return result;
}

void copy(const HostTensor& from, std::size_t from_first, HostTensor& to, std::size_t to_first, std::size_t count) {
  const std::size_t width = size_of(from.type);
  if (count > 0) std::memcpy(to.bytes.data() + to_first * width, from.bytes.data() + from_first * width, count * width);
}

}  // namespace

Part make_part(const Case& whole, const std::vector<std::vector<Piece>>& rows) {
  Part part{whole, {}};
  part.check_case.rows.clear();
  std::int64_t longest = 0;
  for (const auto& row : rows) {
    std::int64_t tokens = 0;
    for (const Piece& piece : row) tokens += piece.length;
    longest = std::max(longest, tokens);
  }
  for (const auto& pieces : rows) {
    Row row;
    std::int64_t tokens = 0;
    for (const Piece& piece : pieces) {
      row.push_back({piece.length, false});
      tokens += piece.length;
      part.pieces.push_back(piece);
    }
    if (tokens < longest) {
      const bool left = part.check_case.rows.size() % 2 == 1;
      row.insert(left ? row.begin() : row.end(), Stretch{longest - tokens, true});
    }
    part.check_case.rows.push_back(std::move(row));
  }
  return part;
}

HostTensors take_part(const Case& whole, const HostTensors& tensors, const Part& part) {
  HostTensors taken;
  for (const auto& [name, tensor] : tensors) {
    if (extent_of(whole, name) == Extent::shared) {
      taken[name] = tensor;
      continue;
    }
    HostTensor share = HostTensor::zeros(tensor.type, shape_in(part.check_case, name, tensor.shape));
    std::ranges::fill(share.bytes, std::byte{0x3c});
    for (const Places& place : places(whole, part, name, share.count(), tensor.count())) {
      copy(tensor, place.in_whole, share, place.in_part, place.count);
    }
    taken[name] = std::move(share);
  }
  return taken;
}

void put_part(const Case& whole, const Part& part, const HostTensors& tensors, HostTensors& into) {
  for (const auto& [name, tensor] : tensors) {
    auto found = into.find(name);
    if (found == into.end()) {
      found = into.emplace(name, HostTensor::zeros(tensor.type, shape_in(whole, name, tensor.shape))).first;
    }
    HostTensor& target = found->second;
    if (extent_of(whole, name) == Extent::shared) {
      std::vector<double> sum = target.to_double();
      const std::vector<double> addend = tensor.to_double();
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += addend[i];
      target = HostTensor::from_double(target.type, target.shape, sum);
      continue;
    }
    for (const Places& place : places(whole, part, name, tensor.count(), target.count())) {
      copy(tensor, place.in_part, target, place.in_whole, place.count);
    }
  }
}

}  // namespace packjit::checking
