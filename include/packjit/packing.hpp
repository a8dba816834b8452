#pragma once
// From the lengths of documents to the steps of a rank. A part of packjit/packjit.hpp.

#include <cstdint>
#include <span>
#include <string>

#include "packjit/status.hpp"

namespace packjit {
inline namespace v1 {

/// What the loss counts alike.
enum class LossUnit { token = PACKJIT_LOSS_PER_TOKEN, document = PACKJIT_LOSS_PER_DOCUMENT };
/// The last token of a document has no next token to predict.
enum class LastToken { is_dropped = PACKJIT_LAST_TOKEN_IS_DROPPED, counts = PACKJIT_LAST_TOKEN_COUNTS };

/// How documents come to ranks: by tokens and longest sequences, or in turn.
enum class RankDivision { balanced = PACKJIT_DIVISION_BALANCED, round_robin = PACKJIT_DIVISION_ROUND_ROBIN };

/// As packjit_packer_options has them; 0 is the default everywhere.
struct PackerOptions {
  std::string method = {};  ///< "local-greedy" where it is empty
  std::int64_t pack_length = 0, rows = 0;
  std::int64_t ranks = 0, rank = 0;
  std::uint64_t seed = 0;
  std::int64_t cut = 0, cut_slack = 0, min_piece = 0;
  std::int64_t window = 0, open_packs = 0;
  LossUnit loss_unit = LossUnit::token;
  LastToken last_token = LastToken::is_dropped;
  RankDivision division = RankDivision::balanced;
};

/// Where documents may be cut: document d at breaks[offsets[d]] to breaks[offsets[d + 1] - 1] tokens from its
/// beginning.
struct BreakPoints {
  std::span<const std::int64_t> breaks, offsets;
};

/// A batch of rows of token slots. What it refers to is the packer's, and valid until the next call with that.
class PackedStep {
 public:
  /// Sizes and places; its pointers are what the functions below give.
  [[nodiscard]] const packjit_step& sizes() const { return step_; }
  /// In the order of their slots.
  [[nodiscard]] std::span<const packjit_piece> pieces() const { return span(step_.pieces, step_.n_pieces); }
  /// (rows, pack_length), as all that follow but cu_seqlens.
  [[nodiscard]] std::span<const std::int32_t> position_indices() const { return tokens(step_.position_indices); }
  [[nodiscard]] std::span<const std::int32_t> seq_idx() const { return tokens(step_.seq_idx); }
  [[nodiscard]] std::span<const std::int64_t> cu_seqlens() const { return span(step_.cu_seqlens, step_.n_cu_seqlens); }
  [[nodiscard]] std::span<const std::int64_t> document_ids() const { return tokens(step_.document_ids); }
  [[nodiscard]] std::span<const std::int64_t> document_offsets() const { return tokens(step_.document_offsets); }
  [[nodiscard]] std::span<const float> loss_weights() const { return tokens(step_.loss_weights); }

 private:
  friend class Packer;
  explicit PackedStep(const packjit_step& step) : step_(step) {}
  template <typename T>
  static std::span<const T> span(const T* first, std::int64_t count) {
    return {first, static_cast<std::size_t>(count)};
  }
  template <typename T>
  [[nodiscard]] std::span<const T> tokens(const T* first) const {
    return span(first, step_.rows * step_.pack_length);
  }
  packjit_step step_;
};

/// The steps of one rank, epoch after epoch. Every rank has one of the same documents and options. For one thread at a
/// time. Movable, not copyable.
class Packer {
 public:
  /// The documents are read before it returns. Plans the first epoch.
  [[nodiscard]] static Result<Packer> create(std::span<const std::int64_t> lengths, const PackerOptions& options,
                                             const BreakPoints& points = {}) {
    if (!points.breaks.empty() && points.offsets.size() != lengths.size() + 1) {
      return Status(Code::bad_argument, "packjit::Packer: " + std::to_string(points.offsets.size()) +
                                            " offsets of breaks, expected one more than the " +
                                            std::to_string(lengths.size()) + " documents");
    }
    const bool has_breaks = !points.breaks.empty();
    const packjit_documents documents{sizeof(documents), static_cast<std::int64_t>(lengths.size()), lengths.data(),
                                      has_breaks ? points.breaks.data() : nullptr,
                                      has_breaks ? points.offsets.data() : nullptr};
    const packjit_packer_options given{sizeof(given),
                                       options.method.empty() ? nullptr : options.method.c_str(),
                                       options.pack_length,
                                       options.rows,
                                       options.ranks,
                                       options.rank,
                                       options.seed,
                                       options.cut,
                                       options.cut_slack,
                                       options.min_piece,
                                       options.window,
                                       options.open_packs,
                                       static_cast<std::int32_t>(options.loss_unit),
                                       static_cast<std::int32_t>(options.last_token),
                                       static_cast<std::int32_t>(options.division)};
    packjit_packer* handle = nullptr;
    if (Status status(packjit_packer_create(&given, &documents, &handle)); !status) return status;
    return Packer(handle);
  }

  /// The next step, of the next epoch where this one is done.
  [[nodiscard]] Result<PackedStep> next() {
    packjit_step step{};
    step.struct_size = sizeof(step);
    if (Status status(packjit_packer_next(handle_.get(), &step)); !status) return status;
    return PackedStep(step);
  }

  /// Where it stands between two steps; the same for all ranks.
  [[nodiscard]] Result<packjit_packer_position> position() const {
    return filled<packjit_packer_position>(packjit_packer_get_position);
  }
  /// Goes on from a position of the same documents, options and number of ranks, as if nothing had happened.
  Status resume(const packjit_packer_position& position) {
    return Status(packjit_packer_resume(handle_.get(), &position));
  }
  /// Limits that hold in every epoch, for maps and for preparing operators, and the steps of this one.
  [[nodiscard]] Result<packjit_packer_info> info() const {
    return filled<packjit_packer_info>(packjit_packer_get_info);
  }
  /// Of the current epoch and all ranks, which it plans again.
  [[nodiscard]] Result<packjit_packer_statistics> statistics() const {
    return filled<packjit_packer_statistics>(packjit_packer_get_statistics);
  }
  [[nodiscard]] packjit_packer* handle() const { return handle_.get(); }

 private:
  explicit Packer(packjit_packer* handle) : handle_(handle) {}
  template <typename Struct, typename Get>
  [[nodiscard]] Result<Struct> filled(Get get) const {
    Struct result{};
    result.struct_size = sizeof(result);
    if (Status status(get(handle_.get(), &result)); !status) return status;
    return result;
  }
  detail::Owned<packjit_packer, packjit_packer_release> handle_;
};

}  // namespace v1
}  // namespace packjit
