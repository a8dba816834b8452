#include "cli/database_access.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <limits>
#include <stdexcept>
#include <string_view>

#include "runtime/errors.hpp"
#include "runtime/text_file.hpp"

namespace packjit {

Database read_database(const std::string& path) {
  const auto refuse = [&](std::string_view problem) {
    throw std::invalid_argument(fmt::format("cannot read the tuning database '{}': {}", path, problem));
  };
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) refuse("it is not a regular file");
  constexpr std::size_t kAny = std::numeric_limits<std::size_t>::max();
  const std::string text = read_text_file(path, kAny, "", [&](std::string_view reason) {
    refuse(fmt::format("{}; give a file that packjit tune or packjit db merge wrote", reason));
  });
  Database database;
  try {
    database = parse_database(text);
  } catch (const std::invalid_argument& problem) {
    refuse(problem.what());
  }
  database.origin = path;
  return database;
}

std::string database_folder() {
  const DatabaseLocation location = database_location();
  if (location.off) {
    throw EnvironmentError(
        "tuning databases are not used here: PACKJIT_DATABASE_DIR is off; unset it, or set it to a folder");
  }
  if (!location.problem.empty()) {
    throw EnvironmentError(fmt::format("there is no folder of tuning databases: {}", location.problem));
  }
  return location.folder;
}

std::vector<std::unique_ptr<DatabaseFile>> user_databases(std::vector<std::string>* problems) {
  const std::string folder = database_folder();
  LogCallback log = &write_log;
  if (problems != nullptr) {
    log = [problems](const LogRecord& record) { problems->push_back(record.message); };
  }
  std::vector<std::unique_ptr<DatabaseFile>> files;
  for (const std::string& stem : database_stems(posix_file_system(), folder)) {
    files.push_back(
        std::make_unique<DatabaseFile>(posix_file_system(), folder, stem, std::nullopt, system_clock(), log));
  }
  return files;
}

}  // namespace packjit
