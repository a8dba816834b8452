#include "api/record_shape.hpp"

#include <algorithm>
#include <exception>
#include <tuple>

#include "runtime/errors.hpp"

namespace packjit::api {
namespace {

/// Lengths of the sequences of each row, from left to right. Empty sequences, and with them unused slots, and padding
/// are left out.
std::vector<std::vector<std::int64_t>> read_rows(Lane& lane, const MappedSequences& sequences) {
  MapSummary summary{};
  lane.read(&summary, sequences.summary.data(), sizeof(summary));
  const auto room = static_cast<std::int64_t>(sequences.item_list.size() / sizeof(SequenceItem));
  std::vector<SequenceItem> items(static_cast<std::size_t>(std::clamp<std::int64_t>(summary.items, 0, room)));
  if (!items.empty()) lane.read(items.data(), sequences.item_list.data(), items.size() * sizeof(SequenceItem));
  std::erase_if(items, [](const SequenceItem& item) { return item.slot < 0 || item.length < 1; });
  std::ranges::sort(items, {}, [](const SequenceItem& item) { return std::tuple(item.row, item.start); });
  std::vector<std::vector<std::int64_t>> rows(static_cast<std::size_t>(sequences.batch));
  for (const SequenceItem& item : items) rows.at(static_cast<std::size_t>(item.row)).push_back(item.length);
  return rows;
}

}  // namespace

void record_shape(CaptureFile& file, Lane& lane, const CheckedCall& call, const MappedSequences& sequences) noexcept {
  if (!file.is_on()) return;
  try {
    CapturedShape shape{call.spec, call.problem.sizes.dim, sequences.seqlen, read_rows(lane, sequences), 1};
    if (std::ranges::all_of(shape.rows, [](const auto& row) { return row.empty(); })) return;
    file.add(shape);
  } catch (const NotPreparedInCapture&) {
    return;  // reading would end the capture
  } catch (const std::exception& error) {
    file.stop(error.what());
  }
}

}  // namespace packjit::api
