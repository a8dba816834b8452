#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include "generator/generate.hpp"

namespace packjit {

/// Kernels of conv1d_pack_fwd with a fault in them, by the number of threads of a block.
inline constexpr int kSkipsTheTail = 64, kWritesBehind = 256, kWritesFarOutside = 512, kNeverEnds = 1024;

inline std::string with_fault(const std::string& text, int block) {
  std::pair<std::string, std::string> change;
  if (block == kSkipsTheTail) change = {"first + j >= tile.tokens) break;", "first + j >= tile.tokens - 1) break;"};
  if (block == kWritesBehind || block == kWritesFarOutside) {
    const std::string far = block == kWritesBehind ? "1" : "(1ll << 40)";
    change = {"store_pack(output_at(args.out, tile.row, t, tile.channel), y);",
              "store_pack(output_at(args.out, tile.row, t + " + far + ", tile.channel), y);"};
  }
  if (block == kNeverEnds) change = {"first += LOAD_TOKENS;", "first += 0;"};
  std::string changed = text;
  if (change.first.empty()) return changed;
  const std::size_t at = changed.find(change.first);
  if (at == std::string::npos) throw std::logic_error("the template has no '" + change.first + "' any more");
  return changed.replace(at, change.first.size(), change.second);
}

/// The block that a generated source was made for, from its first comment.
inline int block_of(const std::string& text) {
  constexpr std::string_view kBlock = "BLOCK = ";
  const std::size_t at = text.find(kBlock);
  if (at == std::string::npos) throw std::logic_error("the source names no BLOCK");
  return std::stoi(text.substr(at + kBlock.size()));
}

}  // namespace packjit
