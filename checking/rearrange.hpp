#pragma once

#include <vector>

#include "checking/case.hpp"

namespace packjit::checking {

/// Consecutive tokens of one sequence of a case.
struct Piece {
  std::size_t slot = 0;
  std::int64_t offset = 0, length = 0;
};

/// Another case made of pieces of a case's sequences: the same operator in other rows.
struct Part {
  Case check_case;
  std::vector<Piece> pieces;  ///< in slot order of the new case
};

/// Each row holds its pieces side by side, then padding up to the longest row (before them in odd rows).
[[nodiscard]] Part make_part(const Case& whole, const std::vector<std::vector<Piece>>& rows);

/// The part's share of a whole case's inputs (token-major). Padding holds arbitrary finite values.
[[nodiscard]] HostTensors take_part(const Case& whole, const HostTensors& tensors, const Part& part);

/// Puts a part's outputs in the places of the whole: tokens and slots overwrite, shared tensors add up.
/// Tensors that `into` lacks start as zeros.
void put_part(const Case& whole, const Part& part, const HostTensors& tensors, HostTensors& into);

}  // namespace packjit::checking
