#pragma once

#include <memory>
#include <string>
#include <vector>

#include "database/database.hpp"
#include "runtime/database_file.hpp"

namespace packjit {

/// Reads a document. Throws std::invalid_argument where there is none, or where it is damaged or newer.
[[nodiscard]] Database read_database(const std::string& path);

/// The folder of the user's databases. Throws EnvironmentError where they are off or there is none.
[[nodiscard]] std::string database_folder();

/// The database files of the user's folder, journals included; none where there is no folder yet. What is wrong with
/// one is added to `problems` where that is given, and is a warning otherwise.
[[nodiscard]] std::vector<std::unique_ptr<DatabaseFile>> user_databases(std::vector<std::string>* problems = nullptr);

}  // namespace packjit
