#include "database/shipped.hpp"

#include <fmt/format.h>

#include <stdexcept>
#include <utility>

namespace packjit {

std::vector<Database> parse_shipped(std::span<const std::string_view> texts) {
  std::vector<Database> databases;
  databases.reserve(texts.size());
  for (const std::string_view text : texts) {
    try {
      Database database = parse_database(text);
      database.origin = "the database shipped with packjit";
      databases.push_back(std::move(database));
    } catch (const std::invalid_argument& error) {
      throw std::logic_error(fmt::format(
          "a tuning database that packjit was built with is damaged: {}; this is a fault of that build", error.what()));
    }
  }
  return databases;
}

const std::vector<Database>& shipped_databases() {
  // Never destroyed: threads may use it while the process ends.
  static const auto* const kDatabases = new std::vector<Database>(parse_shipped(shipped_texts()));
  return *kDatabases;
}

}  // namespace packjit
