// packjit cache: what the disk cache holds, and bundles of entries for other machines.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/cache_access.hpp"
#include "cli/commands.hpp"
#include "cli/output_file.hpp"
#include "cli/terminal.hpp"
#include "database/record_json.hpp"
#include "runtime/errors.hpp"
#include "runtime/text_file.hpp"

namespace packjit {
namespace {

using Json = nlohmann::ordered_json;
using Missing = DiskCache::Missing;

std::string date_of(std::int64_t seconds) {
  const auto time = static_cast<std::time_t>(seconds);
  std::tm parts{};
  gmtime_r(&time, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d", &parts)};
}

const char* origin_of(const CacheEntry& entry) {
  return entry.origin == CacheEntry::Origin::imported ? "imported" : "compiled";
}

/// What the cache holds, read and checked; images and sources are dropped.
struct Survey {
  std::vector<DiskCache::Stored> entries;
  std::vector<DiskCache::StoredCheck> checks;
  [[nodiscard]] std::int64_t bytes() const {
    std::int64_t sum = 0;
    for (const DiskCache::Stored& stored : entries) sum += stored.bytes;
    for (const DiskCache::StoredCheck& stored : checks) sum += stored.bytes;
    return sum;
  }
};

Survey survey(DiskCache* disk) {
  Survey found;
  if (disk == nullptr) return found;
  disk->for_each([&](DiskCache::Stored stored) {
    if (stored.entry) {
      for (std::string* text : {&stored.entry->source, &stored.entry->cubin, &stored.entry->ptx, &stored.entry->log}) {
        *text = {};
      }
    }
    found.entries.push_back(std::move(stored));
  });
  disk->for_each_check([&](const DiskCache::StoredCheck& stored) { found.checks.push_back(stored); });
  return found;
}

/// The value of one line of a remembered self-check.
std::string line_of(const std::string& text, std::string_view name) {
  const std::size_t at = text.find(fmt::format("\n{} ", name));
  if (at == std::string::npos) return {};
  const std::size_t first = at + name.size() + 2;
  return text.substr(first, text.find('\n', first) - first);
}

Json json_of(const Survey& found) {
  const CacheLocation location = cache_location();
  Json entries = Json::array();
  for (const DiskCache::Stored& stored : found.entries) {
    Json json = {{"file", stored.file}, {"bytes", stored.bytes}, {"last_use", date_of(stored.last_use)}};
    json["problem"] = stored.problem.empty() ? Json(nullptr) : Json(stored.problem);
    if (stored.entry) {
      const CacheKey& key = stored.entry->key;
      json["source"] = key.source_key;
      json["source_digest"] = key.source_digest;
      json["arch"] = key.arch;
      json["nvrtc"] = key.nvrtc_version;
      json["nvrtc_build"] = key.nvrtc_build;
      json["options"] = key.options;
      json["seconds"] = stored.entry->seconds;
      json["origin"] = origin_of(*stored.entry);
    }
    entries.push_back(std::move(json));
  }
  Json checks = Json::array();
  for (const DiskCache::StoredCheck& stored : found.checks) {
    Json json = {{"file", stored.file}, {"bytes", stored.bytes}, {"last_use", date_of(stored.last_use)}};
    json["problem"] = stored.problem.empty() ? Json(nullptr) : Json(stored.problem);
    if (stored.problem.empty()) {
      json["source"] = line_of(stored.text, "kernel");
      json["gpu"] = line_of(stored.text, "gpu");
      json["driver"] = line_of(stored.text, "driver");
    }
    checks.push_back(std::move(json));
  }
  return {{"folder", location.path},
          {"limit_bytes", location.bytes},
          {"bytes", found.bytes()},
          {"entries", entries},
          {"self_checks", checks}};
}

std::string summary_of(const Survey& found) {
  const CacheLocation location = cache_location();
  const std::string checks =
      found.checks.empty() ? "" : fmt::format(", {} remembered self-checks", found.checks.size());
  return fmt::format("{}: {} entries{}, {} of {} bytes\n", location.path, found.entries.size(), checks, found.bytes(),
                     location.bytes);
}

void run_list(bool json) {
  const auto found = survey(open_disk_cache(Missing::leave).get());
  if (json) return print_result(dump_text(json_of(found), 2) + "\n");
  std::string text = summary_of(found);
  if (!found.entries.empty()) {
    text += fmt::format("\n{:<8} {:<6} {:<9} {:>10} {:<10} kernel\n", "arch", "NVRTC", "origin", "bytes", "last use");
  }
  for (const DiskCache::Stored& stored : found.entries) {
    const std::string date = date_of(stored.last_use);
    if (!stored.entry) {
      text += fmt::format("{:<8} {:<6} {:<9} {:>10} {:<10} {}: {}\n", "?", "?", "damaged", stored.bytes, date,
                          stored.file, stored.problem);
      continue;
    }
    const CacheKey& key = stored.entry->key;
    text += fmt::format("{:<8} {:<6} {:<9} {:>10} {:<10} {}\n", key.arch, key.nvrtc_version, origin_of(*stored.entry),
                        stored.bytes, date, key.source_key);
  }
  if (!found.checks.empty())
    text += fmt::format("\n{:<8} {:<6} {:<10} self-check passed of\n", "GPU", "driver", "last use");
  for (const DiskCache::StoredCheck& stored : found.checks) {
    const bool whole = stored.problem.empty();
    text += fmt::format("{:<8} {:<6} {:<10} {}\n", whole ? line_of(stored.text, "gpu") : "?",
                        whole ? line_of(stored.text, "driver") : "?", date_of(stored.last_use),
                        whole ? line_of(stored.text, "kernel") : fmt::format("{}: {}", stored.file, stored.problem));
  }
  print_result(text);
}

void run_verify(bool json) {
  const auto found = survey(open_disk_cache(Missing::leave).get());
  std::string damaged;
  int count = 0;
  const auto note = [&](const auto& stored) {
    if (stored.problem.empty()) return;
    damaged += fmt::format("\n  {}: {}", stored.file, stored.problem);
    ++count;
  };
  std::ranges::for_each(found.entries, note);
  std::ranges::for_each(found.checks, note);
  print_result(json ? dump_text(json_of(found), 2) + "\n" : summary_of(found));
  if (count == 0) {
    if (!json) print_result("Every entry is whole.\n");
    return;
  }
  throw CheckFailed(fmt::format(
      "{} of {} files of the disk cache are damaged; each is made anew when it is needed, `packjit cache clear` "
      "removes all:{}",
      count, found.entries.size() + found.checks.size(), damaged));
}

void run_clear() {
  const auto disk = open_disk_cache(Missing::leave);
  const DiskCache::Usage removed = disk == nullptr ? DiskCache::Usage() : disk->clear();
  const std::string checks = removed.checks == 0 ? "" : fmt::format(" and {} remembered self-checks", removed.checks);
  print_result(fmt::format("removed {} entries{} from {}\n", removed.entries, checks, cache_location().path));
}

struct ExportOptions {
  std::string file;
  std::vector<std::string> archs;
};

void run_export(const ExportOptions& options) {
  OutputFile output(options.file);
  const auto disk = open_disk_cache(Missing::leave);
  std::vector<CacheEntry> entries;
  int left_out = 0;
  if (disk != nullptr) {
    disk->for_each([&](const DiskCache::Stored& stored) {
      if (!stored.entry) {
        ++left_out;
        return;
      }
      const std::string& arch = stored.entry->key.arch;
      const bool wanted = std::find(options.archs.begin(), options.archs.end(), arch) != options.archs.end();
      if (options.archs.empty() || wanted) entries.push_back(*stored.entry);
    });
  }
  if (entries.empty()) {
    throw std::invalid_argument(
        fmt::format("the disk cache '{}' has no entries{} to export; `packjit cache list` "
                    "shows what it has",
                    cache_location().path, options.archs.empty() ? "" : " for that --arch"));
  }
  const std::size_t count = entries.size();
  output.write(bundle_of(std::move(entries)));
  output.commit();
  std::string text = fmt::format("wrote {} entries to {}\n", count, options.file);
  if (left_out > 0) text += fmt::format("left out damaged ones: {}; see `packjit cache verify`\n", left_out);
  print_result(text);
}

std::vector<CacheEntry> read_bundle(const std::string& path) {
  const auto refuse = [&](std::string_view problem) {
    throw std::invalid_argument(fmt::format("cannot import '{}': {}; nothing was imported", path, problem));
  };
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) refuse("it is not a regular file");
  constexpr std::size_t kAny = std::numeric_limits<std::size_t>::max();
  const std::string bytes = read_text_file(path, kAny, "", [&](std::string_view reason) {
    refuse(
        fmt::format("it cannot be read: {}; give a file that packjit cache export or compile --bundle wrote", reason));
  });
  std::string problem;
  auto entries = parse_bundle(bytes, problem);
  if (!entries) refuse(problem);
  return std::move(*entries);
}

/// Says so where none of the entries can be of use here: a key holds the very build of NVRTC.
std::string note_on_compiler(const std::vector<CacheEntry>& entries) {
  std::shared_ptr<const Nvrtc> nvrtc;
  try {
    nvrtc = Nvrtc::shared();
  } catch (const EnvironmentError&) {
    return "no NVRTC was found here: entries are used only together with the NVRTC that made them\n";
  }
  const auto others = std::count_if(entries.begin(), entries.end(), [&](const CacheEntry& entry) {
    return entry.key.nvrtc_version != nvrtc->version_text() || entry.key.nvrtc_build != nvrtc->build();
  });
  if (others == 0) return {};
  return fmt::format(
      "{} of them were made by another build of NVRTC than the {} found here, and are not used with it\n", others,
      nvrtc->version_text());
}

void run_import(const std::string& path) {
  std::vector<CacheEntry> entries = read_bundle(path);
  const auto disk = open_disk_cache(Missing::make);
  require_room(*disk, entries, fmt::format("import '{}'", path));
  std::vector<CacheEntry> fresh;
  for (CacheEntry& entry : entries) {
    if (disk->read(entry.key, entry.source)) continue;
    entry.origin = CacheEntry::Origin::imported;
    fresh.push_back(entry);
  }
  fill(*disk, fresh);
  print_result(fmt::format("imported {} entries into {}, {} were there\n{}", fresh.size(), disk->path(),
                           entries.size() - fresh.size(), note_on_compiler(entries)));
}

}  // namespace

void register_cache(CLI::App& app) {
  CLI::App* cache = app.add_subcommand("cache", "Shows, checks, empties and moves the disk cache of compiled kernels");
  cache->require_subcommand(1);
  CLI::App* list = cache->add_subcommand("list", "Shows every entry");
  const auto list_json = std::make_shared<bool>(false);
  list->add_flag("--json", *list_json, "prints JSON");
  list->callback([list_json] { run_list(*list_json); });

  cache->add_subcommand("clear", "Removes every entry")->callback([] { run_clear(); });

  CLI::App* verify = cache->add_subcommand("verify", "Reads and checks every entry; exit status 4 if one is damaged");
  const auto verify_json = std::make_shared<bool>(false);
  verify->add_flag("--json", *verify_json, "prints JSON");
  verify->callback([verify_json] { run_verify(*verify_json); });

  const auto options = std::make_shared<ExportOptions>();
  CLI::App* save = cache->add_subcommand("export", "Writes entries to a bundle, one file for other machines");
  save->add_option("FILE", options->file, "the bundle that is written")->required();
  save->add_option("--arch", options->archs, "only entries for these, such as sm_90,sm_100 (default: all)")
      ->type_name("ARCH")
      ->delimiter(',');
  save->callback([options] { run_export(*options); });

  const auto bundle = std::make_shared<std::string>();
  CLI::App* load = cache->add_subcommand("import", "Checks a bundle and adds its entries; import only what you trust");
  load->add_option("FILE", *bundle, "a bundle that packjit wrote")->required();
  load->callback([bundle] { run_import(*bundle); });
}

}  // namespace packjit
