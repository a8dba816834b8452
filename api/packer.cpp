#include "api/packer.hpp"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "packing/boundaries.hpp"
#include "packing/cutting.hpp"
#include "packing/random.hpp"

namespace packjit::api {
namespace {

std::vector<Document> documents_of(const packjit_documents& given) {
  if (given.count < 1) {
    throw std::invalid_argument(
        fmt::format("packjit_documents: count is {}; expected the number of documents, at least 1", given.count));
  }
  if (given.lengths == nullptr) throw std::invalid_argument("packjit_documents: lengths is NULL");
  if ((given.breaks == nullptr) != (given.break_offsets == nullptr)) {
    throw std::invalid_argument("packjit_documents: one of breaks and break_offsets is NULL; set both, or neither");
  }
  std::vector<Document> documents(static_cast<std::size_t>(given.count));
  for (std::size_t d = 0; d < documents.size(); ++d) {
    documents[d].length = given.lengths[d];
    if (given.breaks == nullptr) continue;
    const std::int64_t first = given.break_offsets[d];
    const std::int64_t last = given.break_offsets[d + 1];
    // Breaks increase inside a document, so that it has fewer than tokens.
    if (first < 0 || last < first || last - first >= std::max<std::int64_t>(documents[d].length, 1)) {
      throw std::invalid_argument(fmt::format(
          "packjit_documents: document {} has {} tokens and its breaks are numbers {} to {} of all; expected "
          "break_offsets that begin at 0 and do not decrease, and fewer breaks than tokens",
          d, documents[d].length, first, last));
    }
    documents[d].breaks.assign(given.breaks + first, given.breaks + last);
  }
  return documents;
}

/// `none` takes the place of -1, where that is allowed.
std::int64_t number(std::string_view name, std::int64_t given, std::int64_t otherwise,
                    std::optional<std::int64_t> none = {}) {
  if (given == 0) return otherwise;
  if (given == -1 && none) return *none;
  if (given < 0) {
    throw std::invalid_argument(
        fmt::format("packjit_packer_options: {} is {}; expected 0 for {}, {}or a number above 0", name, given,
                    otherwise, none ? "-1 for none " : ""));
  }
  return given;
}

PackOptions options_of(const packjit_packer_options& given) {
  const PackOptions defaults;
  PackOptions options;
  options.pack_length = given.pack_length;
  options.rows_per_call = number("rows", given.rows, defaults.rows_per_call);
  options.seed = given.seed;
  options.cut = number("cut", given.cut, given.pack_length);
  options.cut_slack = number("cut_slack", given.cut_slack, defaults.cut_slack, 0);
  options.min_piece = number("min_piece", given.min_piece, defaults.min_piece);
  options.window = number("window", given.window, defaults.window);
  options.open_packs = number("open_packs", given.open_packs, defaults.open_packs, 0);
  options = checked_options(options);
  if (options.rows_per_call > kMaximumLength / options.pack_length) {
    throw std::invalid_argument(
        fmt::format("packjit_packer_options: rows is {} and pack_length is {}; expected a product of at most {}",
                    options.rows_per_call, options.pack_length, kMaximumLength));
  }
  return options;
}

/// One of two, by number.
template <typename Value>
Value choice(std::string_view name, std::int32_t given, Value zero, Value one) {
  if (given == 0) return zero;
  if (given == 1) return one;
  throw std::invalid_argument(fmt::format("packjit_packer_options: {} is {}; expected 0 or 1", name, given));
}

}  // namespace

Packer::Packer(const packjit_packer_options& options, const packjit_documents& documents)
    : stream_(documents_of(documents),
              pack_method_named(options.method == nullptr ? "local-greedy" : std::string_view(options.method)),
              options_of(options), number("ranks", options.ranks, 1), options.rank,
              choice("division", options.division, RankDivision::balanced, RankDivision::round_robin)),
      loss_unit_(choice("loss_unit", options.loss_unit, LossUnit::token, LossUnit::document)),
      last_token_(choice("last_token", options.last_token, LastToken::is_dropped, LastToken::counts)),
      // A run that went on with other weights would be another run. Of the default the stream's fingerprint is enough.
      loss_mark_(options.loss_unit == 0 && options.last_token == 0
                     ? 0
                     : SplitMix64(static_cast<std::uint64_t>(2 * options.loss_unit + options.last_token)).next()),
      max_sequences_(most_pieces_in(stream_.options().rows_per_call * stream_.options().pack_length,
                                    stream_.documents(), stream_.options())) {}

Packer::Arrays Packer::arrays_of(const Call& call, std::span<const StateHandover> handovers) const {
  const std::int64_t pack_length = stream_.options().pack_length;
  Arrays arrays;
  arrays.position_indices = position_indices(call, pack_length);
  arrays.seq_idx = seq_idx(call, pack_length);
  arrays.cu_seqlens = cu_seqlens(call, pack_length);
  arrays.document_ids = document_ids(call, pack_length);
  arrays.document_offsets = document_offsets(call, pack_length);
  arrays.loss_weights = loss_weights(call, pack_length, stream_.documents(), loss_unit_, last_token_);
  auto handover = handovers.begin();
  for (std::size_t row = 0; row < call.rows.size(); ++row) {
    std::int64_t start = 0;
    for (const Piece& piece : call.rows[row].pieces) {
      StateSlot from{-1, -1};
      if (piece.continues) from = (handover++)->from;
      arrays.pieces.push_back({piece.document, piece.offset, piece.length, static_cast<std::int64_t>(row), start,
                               piece.more ? 1 : 0, from.call, from.slot});
      start += piece.length;
    }
  }
  return arrays;
}

packjit_step Packer::next() {
  const PackOptions& options = stream_.options();
  Call call = stream_.upcoming();
  call.rows.resize(static_cast<std::size_t>(options.rows_per_call));  // every step has the same shape
  arrays_ = arrays_of(call, stream_.upcoming_handovers());
  packjit_step step{};
  step.epoch = stream_.position().epoch;
  step.step = stream_.position().step;
  step.steps = stream_.steps();
  step.rows = options.rows_per_call;
  step.pack_length = options.pack_length;
  for (const packjit_piece& piece : arrays_.pieces) {
    step.tokens += piece.length;
    step.max_seqlen = std::max(step.max_seqlen, piece.length);
  }
  step.n_pieces = static_cast<std::int64_t>(arrays_.pieces.size());
  step.n_cu_seqlens = static_cast<std::int64_t>(arrays_.cu_seqlens.size());
  step.pieces = arrays_.pieces.data();
  step.position_indices = arrays_.position_indices.data();
  step.seq_idx = arrays_.seq_idx.data();
  step.cu_seqlens = arrays_.cu_seqlens.data();
  step.document_ids = arrays_.document_ids.data();
  step.document_offsets = arrays_.document_offsets.data();
  step.loss_weights = arrays_.loss_weights.data();
  (void)stream_.next();
  return step;
}

packjit_packer_position Packer::position() const {
  const StreamPosition position = stream_.position();
  return {0, position.epoch, position.step, position.fingerprint ^ loss_mark_};
}

void Packer::resume(const packjit_packer_position& position) {
  stream_.resume({position.epoch, position.step, position.fingerprint ^ loss_mark_});
}

packjit_packer_info Packer::info() const {
  std::int64_t longest = 0;
  for (const Document& document : stream_.documents()) longest = std::max(longest, document.length);
  return {0, max_sequences_, std::min(longest, stream_.options().cut), stream_.steps()};
}

packjit_packer_statistics Packer::statistics() const {
  const auto [packs, balance] = stream_.statistics();
  packjit_packer_statistics result{};
  result.documents = packs.documents;
  result.documents_cut = packs.documents_cut;
  result.pieces = packs.pieces;
  result.tokens = packs.tokens;
  result.slots = balance.slots;
  result.fill_rate = static_cast<double>(packs.tokens) / static_cast<double>(balance.slots);
  result.mean_order_drift = packs.mean_order_drift;
  result.mean_handover_distance = packs.mean_handover_distance;
  result.mean_token_spread = balance.mean_token_spread;
  result.mean_longest_spread = balance.mean_longest_spread;
  result.largest_order_drift = packs.largest_order_drift;
  result.largest_handover_distance = packs.largest_handover_distance;
  return result;
}

}  // namespace packjit::api
