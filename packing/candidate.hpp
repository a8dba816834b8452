#pragma once

#include <cstdint>

#include "packing/packing.hpp"

namespace packjit {

/// A piece to be placed. It has to lie in a row opened later than the row of the piece before it: so rows never wait
/// for each other in a circle, whatever documents they share.
struct Candidate {
  Piece piece;
  std::int64_t left = 0;   ///< tokens of the document from this piece on
  std::int64_t after = 0;  ///< the row of the piece before it; rows are numbered from 1
};

/// By what is left of the document, not by the piece: a document of many pieces needs as many rows, one after the
/// other, so it has to begin early for the others to fill those rows.
struct LessLeft {
  bool operator()(const Candidate& a, const Candidate& b) const {
    if (a.left != b.left) return a.left < b.left;
    return a.piece.document > b.piece.document;
  }
};

/// How many open rows are looked at for the one that a piece fills best, before the first that takes it will do.
inline constexpr int kRowsLookedAt = 256;

}  // namespace packjit
