#include "cli/database_access.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "runtime/errors.hpp"

namespace packjit {

Database read_database(const std::string& path) {
  const auto refuse = [&](const std::string& problem) {
    throw std::invalid_argument(fmt::format("cannot read the tuning database '{}': {}", path, problem));
  };
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) refuse("there is no such file");
  if (!std::filesystem::is_regular_file(status)) refuse("it is not a regular file");
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file.is_open() || file.bad()) refuse("its contents cannot be read; see its permissions");
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
