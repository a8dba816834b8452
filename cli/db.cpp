// packjit db: what the tuning databases hold, and keeping them in order.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.hpp"
#include "cli/database_access.hpp"
#include "cli/output_file.hpp"
#include "cli/terminal.hpp"
#include "database/printable.hpp"
#include "database/record_json.hpp"
#include "database/shipped.hpp"
#include "runtime/errors.hpp"
#include "runtime/source_digest.hpp"

namespace packjit {
namespace {

using Json = nlohmann::ordered_json;

/// The FILEs that were named; the user's and the shipped ones where none was.
std::vector<Database> databases_of(const std::vector<std::string>& paths) {
  std::vector<Database> found;
  found.reserve(paths.size());
  for (const std::string& path : paths) found.push_back(read_database(path));
  if (!paths.empty()) return found;
  for (const auto& file : user_databases()) found.push_back(file->load());
  for (const Database& database : shipped_databases()) found.push_back(database);
  return found;
}

std::string gpu_name(const Database& database) {
  return database.gpu ? fmt::format("{} ({})", printable(database.gpu->name), database.gpu->arch) : "no GPU";
}

struct Options {
  std::vector<std::string> files;
  std::string output;
  bool json = false;
  bool outdated = false, unusable = false, failed = false;
};

void run_list(const Options& options) {
  const std::vector<Database> databases = databases_of({});
  if (options.json) {
    Json list = Json::array();
    for (const Database& database : databases) {
      list.push_back({{"origin", database.origin},
                      {"gpu", database.gpu ? json_of(*database.gpu) : Json(nullptr)},
                      {"entries", database.entries.size()},
                      {"failed", database.failed.size()},
                      {"unusable", database.unusable.size()},
                      {"digest", database_digest(database)}});
    }
    return print_result(dump_text(Json{{"folder", database_folder()}, {"databases", list}}, 2) + "\n");
  }
  std::string text = fmt::format("folder of this user: {}\n", database_folder());
  if (databases.empty()) text += "no tuning database, neither of this user nor shipped: built-in Configs are used\n";
  for (const Database& database : databases) {
    text += fmt::format("{}: {}, {} entries, {} failed candidates", database.origin, gpu_name(database),
                        database.entries.size(), database.failed.size());
    if (!database.unusable.empty()) text += fmt::format(", {} records that are not used", database.unusable.size());
    text += "\n";
  }
  print_result(text);
}

std::string row_of(const Entry& entry) {
  return fmt::format("{:<16} {:<56} {:>9.4f} {:>9.4f} {:>7.1f} {}\n    {}\n    {}\n", name_of(entry.spec.op),
                     text_of(entry.bucket, entry.spec.op), entry.time.median_ms, entry.built_in.median_ms,
                     100 * entry.limit_share, entry.date, entry.spec.values.text(), entry.config.values.text());
}

void run_show(const Options& options) {
  const std::vector<Database> databases = databases_of(options.files);
  if (options.json) {
    Json list = Json::array();
    for (const Database& database : databases) {
      list.push_back({{"origin", database.origin}, {"document", Json::parse(write_database(database))}});
    }
    return print_result(dump_text(Json{{"databases", list}}, 2) + "\n");
  }
  std::string text = databases.empty() ? "no tuning database\n" : "";
  for (const Database& database : databases) {
    text += fmt::format("{}: {}\n", database.origin, gpu_name(database));
    if (!database.entries.empty()) {
      text += fmt::format("{:<16} {:<56} {:>9} {:>9} {:>7} {}\n", "operator", "bucket; Spec; Config", "ms", "built-in",
                          "% limit", "date");
    }
    for (const Entry& entry : database.entries) text += row_of(entry);
    for (const FailedCandidate& candidate : database.failed) {
      text += fmt::format("failed: {} {}: {}\n", name_of(candidate.spec.op), candidate.config.values.text(),
                          printable(candidate.reason));
    }
    for (const UnusableRecord& record : database.unusable) text += fmt::format("not used: {}\n", record.reason);
  }
  print_result(text);
}

/// Whether this packjit prints the kernel otherwise. Such entries are used all the same, since results stay right.
bool is_outdated(const Entry& entry) { return source_digest(entry.spec, entry.config) != entry.source_digest; }

/// Which record it is: its operator, Spec and bucket as they came.
std::string label_of(const UnusableRecord& record) {
  const auto part = [&](const char* name) {
    const auto found = record.record.find(name);
    return found == record.record.end() ? std::string() : " " + describe(*found);
  };
  return fmt::format("{}{}{}{}", record.failed ? "failed candidate" : "entry", part("operator"), part("bucket"),
                     part("date"));
}

/// A file of this user's folder has the name of its GPU model, and only that is looked into for it.
std::string problem_of_name(const DatabaseFile& file, const Database& database) {
  const std::string found = std::filesystem::path(file.path()).stem().string();
  if (!database.gpu || found == database_stem(*database.gpu)) return {};
  return fmt::format(
      "{}: it is of {}, whose file is {}.json, so its entries are never used; take it in with `packjit db merge` and "
      "remove it",
      file.path(), gpu_name(database), database_stem(*database.gpu));
}

void run_check(const Options& options) {
  std::vector<std::string> problems;
  std::vector<Database> databases;
  for (const std::string& path : options.files) {
    std::error_code ignored;
    // What is not there is a wrong command, what is damaged a failed check.
    if (!std::filesystem::exists(path, ignored)) (void)read_database(path);
    try {
      databases.push_back(read_database(path));
    } catch (const std::invalid_argument& error) {
      problems.emplace_back(error.what());
    }
  }
  if (options.files.empty()) {
    for (const auto& file : user_databases(&problems)) {
      databases.push_back(file->load());
      const std::string problem = problem_of_name(*file, databases.back());
      if (!problem.empty()) problems.push_back(problem);
    }
    for (const Database& database : shipped_databases()) databases.push_back(database);
  }
  Json list = Json::array();
  std::string text;
  for (const Database& database : databases) {
    Json reasons = Json::array();
    for (const UnusableRecord& record : database.unusable) {
      reasons.push_back(fmt::format("{}: {}", label_of(record), record.reason));
      problems.push_back(fmt::format("{}: {}: {}", database.origin, label_of(record), record.reason));
    }
    const auto outdated = std::ranges::count_if(database.entries, is_outdated);
    text += fmt::format("{}: {} entries, of which {} were tuned with another source; {} records that are not used\n",
                        database.origin, database.entries.size(), outdated, database.unusable.size());
    list.push_back({{"origin", database.origin},
                    {"entries", database.entries.size()},
                    {"outdated", outdated},
                    {"unusable", std::move(reasons)}});
  }
  if (options.json) text = dump_text(Json{{"databases", list}, {"problems", problems}}, 2) + "\n";
  print_result(text);
  if (problems.empty()) return;
  std::string message = "tuning databases have problems:";
  for (const std::string& problem : problems) message += "\n  " + problem;
  throw CheckFailed(message);
}

/// Takes away outdated entries of which one of `others`, of the same GPU model, has one of the same Spec and bucket
/// that is not: whatever the dates, that one measured a kernel that is printed today.
void remove_beaten(Database& database, std::span<const Database> others) {
  const auto beats = [](const Entry& rival, const Entry& entry) {
    return rival.bucket == entry.bucket && rival.spec == entry.spec && !is_outdated(rival);
  };
  for (const Database& other : others) {
    if (!database.gpu || !other.gpu || !same_model(*database.gpu, *other.gpu)) continue;
    std::erase_if(database.entries, [&](const Entry& entry) {
      return is_outdated(entry) &&
             std::ranges::any_of(other.entries, [&](const Entry& rival) { return beats(rival, entry); });
    });
  }
}

/// Why records stay in the journal, and what to do.
std::string why_not_written(const DatabaseFile& file) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status status = fs::symlink_status(file.path(), error);
  if (fs::is_symlink(status)) return "it is a link, which is not followed; put the document itself in its place";
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    return "what lies there is no regular file; move it away and merge again";
  }
  try {
    if (fs::exists(status)) (void)read_database(file.path());
  } catch (const std::invalid_argument& problem) {
    return fmt::format("{}; then merge again", problem.what());
  }
  return "the warning before this says why; when that is mended, and no other packjit writes there, merge again";
}

void run_merge(const Options& options) {
  std::vector<Database> databases = databases_of(options.files);
  const std::vector<Database> as_given = databases;
  for (Database& database : databases) remove_beaten(database, as_given);
  if (!options.output.empty()) {
    Database all;
    for (Database& database : databases) {
      try {
        all = merge(all, database);
      } catch (const std::invalid_argument& error) {
        throw std::invalid_argument(fmt::format("cannot merge '{}': {}", database.origin, error.what()));
      }
    }
    write_output_file(options.output, write_database(all));
    return print_result(fmt::format("wrote {} entries and {} failed candidates to {}\n", all.entries.size(),
                                    all.failed.size(), options.output));
  }
  const std::string folder = database_folder();
  std::string text, kept;
  for (Database& database : databases) {
    if (!database.gpu) continue;
    DatabaseFile file(posix_file_system(), folder, database_stem(*database.gpu), database.gpu, system_clock(),
                      &write_log);
    const Database present = file.load();
    remove_beaten(database, std::span(&present, 1));
    // The warning has said why.
    if (!file.append_all(database)) throw EnvironmentError(fmt::format("cannot write to '{}'", file.path()));
    // What is kept but never used, and fields of newer versions, are not records: they go into the document itself.
    const auto take_in = [&](Database& all) {
      remove_beaten(all, std::span(&database, 1));
      all = merge(std::move(all), database);
    };
    if (file.rewrite(take_in)) {
      text += fmt::format("merged {} entries and {} failed candidates into {}\n", database.entries.size(),
                          database.failed.size(), file.path());
      continue;
    }
    const bool whole = database.unusable.empty() && database.unknown.empty();
    kept +=
        fmt::format("{}the records of '{}' are in the journal of '{}', where they are used, but not in that file{}: {}",
                    kept.empty() ? "" : "\n", database.origin, file.path(),
                    whole ? "" : ", and what of it is kept and never used is in neither", why_not_written(file));
  }
  if (!text.empty()) print_result(text);
  if (!kept.empty()) throw EnvironmentError(kept);
}

void run_prune(const Options& options) {
  const bool chosen = options.outdated || options.unusable || options.failed;
  PruneRules rules;
  if (options.outdated || !chosen) rules.source_digest = &source_digest;
  rules.unusable = options.unusable || !chosen;
  rules.failed = options.failed;
  std::vector<std::string> removed;
  const auto change = [&](Database& database) {
    for (std::string& line : prune(database, rules)) removed.push_back(std::move(line));
  };
  // All are read before the first is written: a wrong name changes nothing.
  std::vector<Database> databases;
  if (!options.files.empty()) databases = databases_of(options.files);
  for (Database& database : databases) {
    change(database);
    write_output_file(database.origin, write_database(database));
  }
  if (options.files.empty()) {
    for (const auto& file : user_databases()) {
      if (!file->rewrite(change)) throw EnvironmentError(fmt::format("cannot change '{}'", file->path()));
    }
  }
  if (options.json) return print_result(dump_text(Json{{"removed", removed}}, 2) + "\n");
  std::string text = fmt::format("removed {} records\n", removed.size());
  for (const std::string& line : removed) text += "  " + line + "\n";
  print_result(text);
}

void run_diff(const Options& options) {
  const Database a = read_database(options.files.at(0)), b = read_database(options.files.at(1));
  if (a.gpu && b.gpu && !same_model(*a.gpu, *b.gpu)) {
    throw std::invalid_argument(
        fmt::format("cannot compare '{}' of {} with '{}' of {}: what was measured on two GPU models differs anyway",
                    a.origin, gpu_name(a), b.origin, gpu_name(b)));
  }
  const DatabaseDifference found = diff(a, b);
  const auto unusable = [](const Database& database) {
    std::vector<std::string> lines;
    for (const UnusableRecord& record : database.unusable) {
      lines.push_back(fmt::format("{}: {}", label_of(record), record.reason));
    }
    return lines;
  };
  if (options.json) {
    const auto list = [](const auto& records) {
      Json all = Json::array();
      for (const auto& record : records) all.push_back(json_of(record));
      return all;
    };
    Json changed = Json::array();
    for (const auto& [before, after] : found.changed) {
      changed.push_back({{"a", json_of(before)}, {"b", json_of(after)}});
    }
    return print_result(dump_text(Json{{"only_a", list(found.only_a)},
                                       {"only_b", list(found.only_b)},
                                       {"changed", changed},
                                       {"failed_only_a", list(found.failed_only_a)},
                                       {"failed_only_b", list(found.failed_only_b)},
                                       {"unusable_a", unusable(a)},
                                       {"unusable_b", unusable(b)}},
                                  2) +
                        "\n");
  }
  std::string text;
  for (const Entry& entry : found.only_a) text += fmt::format("- {}\n", label_of(entry));
  for (const Entry& entry : found.only_b) text += fmt::format("+ {}\n", label_of(entry));
  for (const auto& [before, after] : found.changed) {
    text += fmt::format("! {}\n    - {:.4f} ms, {}: {}\n    + {:.4f} ms, {}: {}\n", label_of(before),
                        before.time.median_ms, before.date, before.config.values.text(), after.time.median_ms,
                        after.date, after.config.values.text());
  }
  // They are compared with nothing: what is only in one document may be in the other, but not to be used.
  for (const Database* database : {&a, &b}) {
    for (const std::string& line : unusable(*database)) {
      text += fmt::format("? not used in {}: {}\n", database->origin, line);
    }
  }
  text += fmt::format("{} entries only in {}, {} only in {}, {} changed; {} and {} failed candidates of one only\n",
                      found.only_a.size(), options.files[0], found.only_b.size(), options.files[1],
                      found.changed.size(), found.failed_only_a.size(), found.failed_only_b.size());
  print_result(text);
}

}  // namespace

void register_db(CLI::App& app) {
  CLI::App* db = app.add_subcommand("db", "Shows, checks, merges and prunes the tuning databases");
  db->require_subcommand(1);
  const auto add = [&](const char* name, const char* help, void (*run)(const Options&)) {
    const auto options = std::make_shared<Options>();
    CLI::App* command = db->add_subcommand(name, help);
    command->callback([options, run] { run(*options); });
    return std::pair(command, options);
  };
  const auto add_json = [](const auto& made) {
    made.second->json = false;
    made.first->add_flag("--json", made.second->json, "prints JSON");
  };
  const auto add_files = [](const auto& made, const char* help) {
    return made.first->add_option("FILE", made.second->files, help);
  };
  add_json(add("list", "Shows which databases there are, of this user and shipped", run_list));
  const auto show = add("show", "Shows every entry", run_show);
  add_files(show, "documents (default: those of this user and shipped)");
  add_json(show);
  const auto check = add("check", "Reads and checks every record; exit status 4 if one cannot be used", run_check);
  add_files(check, "documents (default: those of this user and shipped)");
  add_json(check);
  const auto merged = add("merge", "Adds documents to the databases of this user, or writes one of all", run_merge);
  add_files(merged, "documents to merge")->required();
  merged.first->add_option("-o,--output", merged.second->output, "document to write instead, all of one GPU model")
      ->type_name("FILE");
  const auto pruned = add("prune", "Removes records (default: --outdated --unusable)", run_prune);
  add_files(pruned, "documents to change (default: those of this user)");
  pruned.first->add_flag("--outdated", pruned.second->outdated, "those whose kernel this packjit prints otherwise");
  pruned.first->add_flag("--unusable", pruned.second->unusable, "those that are kept but never used");
  pruned.first->add_flag("--failed", pruned.second->failed, "failed candidates, so that they are tried again");
  add_json(pruned);
  const auto compared = add("diff", "Shows what is in one document only, and what differs", run_diff);
  add_files(compared, "two documents")->required()->expected(2);
  add_json(compared);
}

}  // namespace packjit
