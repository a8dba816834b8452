#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "database/database.hpp"

namespace packjit {

/// The documents that the build embedded (database/shipped/), as they are in the files.
[[nodiscard]] std::vector<std::string_view> shipped_texts();

/// Reads documents that come with the library; throws std::logic_error where one is damaged.
[[nodiscard]] std::vector<Database> parse_shipped(std::span<const std::string_view> texts);

/// Those of shipped_texts(), read at the first call. Safe to call from any thread.
[[nodiscard]] const std::vector<Database>& shipped_databases();

}  // namespace packjit
