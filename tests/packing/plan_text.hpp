#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "packing/packing.hpp"

namespace packjit {

inline std::vector<Document> documents(const std::vector<std::int64_t>& lengths) {
  std::vector<Document> result;
  for (const std::int64_t length : lengths) result.push_back({length, {}});
  return result;
}

inline PackOptions options(std::int64_t pack_length, std::int64_t rows_per_call = 1) {
  PackOptions result;
  result.pack_length = pack_length;
  result.rows_per_call = rows_per_call;
  return result;
}

/// "0@0+5 1@0+4 | 2@0+3 || ...": pieces as document@offset+length, rows apart by |, calls by ||.
inline std::string text(const PackPlan& plan) {
  std::string result;
  for (const Call& call : plan.calls) {
    if (&call != &plan.calls.front()) result += " || ";
    for (const Row& row : call.rows) {
      if (&row != &call.rows.front()) result += " | ";
      for (const Piece& piece : row.pieces) {
        if (&piece != &row.pieces.front()) result += " ";
        result +=
            std::to_string(piece.document) + "@" + std::to_string(piece.offset) + "+" + std::to_string(piece.length);
      }
    }
  }
  return result;
}

/// The rows in an order that does not depend on the seed.
inline std::vector<std::string> rows_of(const PackPlan& plan) {
  std::vector<std::string> rows;
  for (const Call& call : plan.calls) {
    for (const Row& row : call.rows) {
      PackPlan one;
      one.calls = {{{row}}};
      rows.push_back(text(one));
    }
  }
  std::sort(rows.begin(), rows.end());
  return rows;
}

}  // namespace packjit
