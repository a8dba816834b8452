#include "database/record_json.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "database/json_object.hpp"

namespace packjit {
namespace {

using Ordered = nlohmann::ordered_json;

Ordered json_of(const Workload& work) {
  return {{"tokens", work.tokens}, {"sequences", work.sequences}, {"dim", work.dim}, {"longest", work.longest}};
}

Ordered json_of(const TimeStatistics& time) {
  return {{"median_ms", time.median_ms}, {"low_ms", time.low_ms}, {"high_ms", time.high_ms}, {"rounds", time.rounds}};
}

/// Fields that are missing keep their fallback: they came with a later version. Returns why the values cannot be used.
std::string read_values(const nlohmann::json& json, const std::string& place, FieldValues& values) {
  if (!json.is_object()) {
    throw std::invalid_argument(fmt::format("{}: expected an object, found {}", place, describe(json)));
  }
  for (const auto& [name, value] : json.items()) {
    if (!values.has(name)) return fmt::format("{} has a field '{}' that this packjit does not know", place, name);
    try {
      if (value.is_string()) {
        values.set_text(name, value.get<std::string>());
      } else if (value.is_number_integer()) {
        values.set_text(name, value.dump());
      } else {
        return fmt::format("{}.{}: expected a text or an integer, found {}", place, name, describe(value));
      }
    } catch (const std::invalid_argument& error) {
      return fmt::format("{}: {}", place, error.what());
    }
  }
  return {};
}

Workload read_workload(JsonObject& object, std::string_view name) {
  JsonObject inner = object.object(name);
  Workload work;
  work.tokens = inner.integer("tokens", 1);
  work.sequences = inner.integer("sequences", 1);
  work.dim = inner.integer("dim", 1);
  work.longest = inner.integer("longest", 1);
  object.keep_rest_of(name, inner);
  return work;
}

TimeStatistics read_time(JsonObject& object, std::string_view name) {
  JsonObject inner = object.object(name);
  TimeStatistics time;
  time.median_ms = inner.number("median_ms");
  time.low_ms = inner.number("low_ms");
  time.high_ms = inner.number("high_ms");
  time.rounds = inner.small_integer("rounds");
  object.keep_rest_of(name, inner);
  return time;
}

/// Operator, Spec and Config; returns why they cannot be used.
std::string read_pair(JsonObject& object, Spec& spec, Config& config) {
  const std::string name = object.text("operator");
  const nlohmann::json &spec_json = object.take("spec"), &config_json = object.take("config");
  try {
    const Operator op = operator_named(name);
    spec = Spec(op);
    config = Config(op);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  std::string problem = read_values(spec_json, object.place_of("spec"), spec.values);
  if (problem.empty()) problem = read_values(config_json, object.place_of("config"), config.values);
  return problem;
}

std::string why_not_pair(const Spec& spec, const Config& config) {
  try {
    if (spec.op == Operator::sequence_map) return "sequence_map is not tuned";
    check_pair(spec, config);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return {};
}

/// YYYY-MM-DD or YYYY-MM-DDThh:mm:ssZ, of a day and a time that there are.
bool is_date(std::string_view text) {
  for (const std::string_view form : {"0000-00-00", "0000-00-00T00:00:00Z"}) {
    bool fits = text.size() == form.size();
    for (std::size_t i = 0; fits && i < form.size(); ++i) {
      fits = form[i] == '0' ? text[i] >= '0' && text[i] <= '9' : text[i] == form[i];
    }
    if (!fits) continue;
    const auto number = [&](std::size_t at) {
      return static_cast<unsigned>(text[at] - '0') * 10 + static_cast<unsigned>(text[at + 1] - '0');
    };
    const std::chrono::year_month_day day{std::chrono::year(static_cast<int>(100 * number(0) + number(2))),
                                          std::chrono::month(number(5)), std::chrono::day(number(8))};
    if (!day.ok()) return false;
    return text.size() == 10 || (number(11) < 24 && number(14) < 60 && number(17) < 60);
  }
  return false;
}

/// Beyond these a measurement was none: no call of an operator takes as long, and no clock is as fast.
constexpr double kLongestCall = 3.6e6;  // ms
constexpr double kLargestShare = 100;   // of a limit; above 1 where the GPU's caches hold what is counted as traffic
constexpr int kFastestClock = 100'000;  // MHz

bool is_time(const TimeStatistics& time) {
  return std::isfinite(time.median_ms) && std::isfinite(time.low_ms) && std::isfinite(time.high_ms) &&
         time.low_ms >= 0 && time.low_ms <= time.median_ms && time.median_ms <= time.high_ms &&
         time.high_ms <= kLongestCall;
}

}  // namespace

std::string describe(const nlohmann::json& json) {
  constexpr std::size_t kMost = 60;
  std::string text = dump_text(json);
  if (text.size() > kMost) text = text.substr(0, kMost) + "...";
  return text;
}

std::string reason_of(const nlohmann::json::exception& error) {
  const std::string_view reason = error.what();  // "[json.exception.parse_error.101] parse error at ..."
  const std::size_t label = reason.find("] ");
  return std::string(label == std::string_view::npos ? reason : reason.substr(label + 2));
}

void add_unknown(Ordered& json, const nlohmann::json& unknown) {
  for (const auto& [name, value] : unknown.items()) {
    const auto found = json.find(name);
    if (found == json.end()) {
      json[name] = value;
    } else if (found->is_object() && value.is_object()) {
      add_unknown(*found, value);
    }
  }
}

Ordered json_of(const FieldValues& values) {
  Ordered json = Ordered::object();
  for (const Field& field : values.table()) {
    if (!values.names(field)) continue;
    const std::string name(field.name);
    if (field.labels.empty()) {
      json[name] = values[field.name];
    } else {
      json[name] = values.text(field.name);
    }
  }
  return json;
}

Ordered json_of(const GpuProperties& gpu) {
  return {{"name", gpu.name},
          {"arch", gpu.arch},
          {"multiprocessors", gpu.multiprocessors},
          {"shared_bytes_per_block", gpu.shared_bytes_per_block},
          {"l2_bytes", gpu.l2_bytes},
          {"memory_clock_mhz", gpu.memory_clock_mhz}};
}

Ordered json_of(const Entry& entry) {
  Ordered json = Ordered::object();
  json["operator"] = name_of(entry.spec.op);
  json["spec"] = json_of(entry.spec.values);
  json["bucket"] = {{"dim", entry.bucket.dim},
                    {"tokens", entry.bucket.tokens},
                    {"spread", entry.bucket.spread},
                    {"mean_length", entry.bucket.mean_length}};
  json["config"] = json_of(entry.config.values);
  json["measured"] = json_of(entry.measured);
  json["time"] = json_of(entry.time);
  json["built_in"] = json_of(entry.built_in);
  json["limit_share"] = entry.limit_share;
  json["lowest_mhz"] = entry.lowest_mhz;
  json["highest_mhz"] = entry.highest_mhz;
  json["tried"] = entry.tried;
  json["check"] = {{"method", entry.check.method}, {"error", entry.check.error}};
  json["nvrtc"] = entry.nvrtc;
  json["driver"] = entry.driver;
  json["source_digest"] = entry.source_digest;
  json["date"] = entry.date;
  add_unknown(json, entry.unknown);
  return json;
}

Ordered json_of(const FailedCandidate& candidate) {
  Ordered json = Ordered::object();
  json["operator"] = name_of(candidate.spec.op);
  json["spec"] = json_of(candidate.spec.values);
  json["config"] = json_of(candidate.config.values);
  json["measured"] = json_of(candidate.measured);
  json["reason"] = candidate.reason;
  json["nvrtc"] = candidate.nvrtc;
  json["driver"] = candidate.driver;
  json["source_digest"] = candidate.source_digest;
  add_unknown(json, candidate.unknown);
  return json;
}

GpuProperties read_gpu(const nlohmann::json& json, const std::string& place, nlohmann::json& unknown) {
  JsonObject object(json, place);
  GpuProperties gpu;
  gpu.name = object.text("name");
  gpu.arch = object.text("arch");
  // It becomes part of a file's name.
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  std::string_view number = gpu.arch;
  if (number.starts_with("sm_")) number.remove_prefix(3);
  if (number.size() > 1 && number.back() >= 'a' && number.back() <= 'z') number.remove_suffix(1);
  if (!gpu.arch.starts_with("sm_") || number.empty() || !std::ranges::all_of(number, is_digit)) {
    throw std::invalid_argument(
        fmt::format("{}.arch: expected an architecture like sm_90, found '{}'", place, gpu.arch));
  }
  gpu.multiprocessors = object.small_integer("multiprocessors");
  gpu.shared_bytes_per_block = object.integer("shared_bytes_per_block");
  gpu.l2_bytes = object.integer("l2_bytes");
  gpu.memory_clock_mhz = object.small_integer("memory_clock_mhz");
  unknown = object.rest();
  return gpu;
}

std::string read_record(const nlohmann::json& json, const std::string& place, Entry& record) {
  JsonObject object(json, place);
  const std::string problem = read_pair(object, record.spec, record.config);
  JsonObject bucket = object.object("bucket");
  record.bucket = {bucket.integer("dim", 1), bucket.integer("tokens", 1), bucket.integer("spread"),
                   bucket.integer("mean_length")};
  object.keep_rest_of("bucket", bucket);
  record.measured = read_workload(object, "measured");
  record.time = read_time(object, "time");
  record.built_in = read_time(object, "built_in");
  record.limit_share = object.number("limit_share");
  record.lowest_mhz = object.small_integer("lowest_mhz");
  record.highest_mhz = object.small_integer("highest_mhz");
  record.tried = object.small_integer("tried");
  JsonObject check = object.object("check");
  record.check.method = check.text("method");
  record.check.error = check.number("error");
  object.keep_rest_of("check", check);
  record.nvrtc = object.text("nvrtc");
  record.driver = object.text("driver");
  record.source_digest = object.text("source_digest");
  record.date = object.text("date");
  record.unknown = object.rest();
  return problem.empty() ? why_unusable(record) : problem;
}

std::string read_record(const nlohmann::json& json, const std::string& place, FailedCandidate& record) {
  JsonObject object(json, place);
  const std::string problem = read_pair(object, record.spec, record.config);
  record.measured = read_workload(object, "measured");
  record.reason = object.text("reason");
  record.nvrtc = object.text("nvrtc");
  record.driver = object.text("driver");
  record.source_digest = object.text("source_digest");
  record.unknown = object.rest();
  return problem.empty() ? why_unusable(record) : problem;
}

std::string why_unusable(const Entry& entry) {
  if (std::string problem = why_not_pair(entry.spec, entry.config); !problem.empty()) {
    return "impossible config: " + problem;
  }
  if (entry.check.method.empty()) return "no numerical check was passed: check.method is empty";
  if (!(entry.check.error >= 0 && entry.check.error <= 1)) {
    return fmt::format("the numerical check was not passed: check.error is {}, a share of the bound, expected 0 to 1",
                       entry.check.error);
  }
  if (const Bucket bucket = bucket_of(entry.spec.op, entry.measured); bucket != entry.bucket) {
    return fmt::format("the shape that was measured is of another bucket ({}) than the entry ({})",
                       text_of(bucket, entry.spec.op), text_of(entry.bucket, entry.spec.op));
  }
  if (!is_time(entry.time) || entry.time.median_ms <= 0 || !is_time(entry.built_in)) {
    return fmt::format("its times are none: expected 0 <= low_ms <= median_ms <= high_ms <= {}, and a median above 0",
                       kLongestCall);
  }
  if (!(entry.limit_share >= 0 && entry.limit_share <= kLargestShare)) {
    return fmt::format("limit_share is {}, expected 0 to {}", entry.limit_share, kLargestShare);
  }
  if (entry.lowest_mhz > entry.highest_mhz || entry.highest_mhz > kFastestClock) {
    return fmt::format("its clocks are none: expected lowest_mhz <= highest_mhz <= {}, found {} and {}", kFastestClock,
                       entry.lowest_mhz, entry.highest_mhz);
  }
  if (!is_date(entry.date)) {
    return fmt::format("date is '{}', expected YYYY-MM-DD or YYYY-MM-DDThh:mm:ssZ", entry.date);
  }
  return {};
}

std::string why_unusable(const FailedCandidate& candidate) {
  std::string problem = why_not_pair(candidate.spec, candidate.config);
  return problem.empty() ? problem : "impossible config: " + problem;
}

}  // namespace packjit
