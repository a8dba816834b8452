#include "database/json_object.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

#include "database/record_json.hpp"

namespace packjit {
namespace {
[[noreturn]] void refuse(const std::string& place, std::string_view expected, const nlohmann::json& found) {
  throw std::invalid_argument(fmt::format("{}: expected {}, found {}", place, expected, describe(found)));
}
}  // namespace

JsonObject::JsonObject(const nlohmann::json& json, std::string place) : json_(json), place_(std::move(place)) {
  if (!json_.is_object()) refuse(place_.empty() ? "the document" : place_, "an object", json_);
}

std::string JsonObject::place_of(std::string_view name) const {
  return place_.empty() ? std::string(name) : fmt::format("{}.{}", place_, name);
}

const nlohmann::json& JsonObject::take(std::string_view name) {
  const auto found = json_.find(name);
  if (found == json_.end()) throw std::invalid_argument(fmt::format("{} is missing", place_of(name)));
  taken_.push_back(name);
  return *found;
}

const std::string& JsonObject::text(std::string_view name) {
  const nlohmann::json& value = take(name);
  if (!value.is_string()) refuse(place_of(name), "a text", value);
  return value.get_ref<const std::string&>();
}

double JsonObject::number(std::string_view name) {
  const nlohmann::json& value = take(name);
  if (!value.is_number() || value.get<double>() < 0) refuse(place_of(name), "a number of 0 or more", value);
  return value.get<double>();
}

std::int64_t JsonObject::integer(std::string_view name, std::int64_t least) {
  const nlohmann::json& value = take(name);
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  const bool fits = value.is_number_integer() && !(value.is_number_unsigned() && value.get<std::uint64_t>() > kMost);
  if (!fits || value.get<std::int64_t>() < least) {
    refuse(place_of(name), fmt::format("an integer of {} or more", least), value);
  }
  return value.get<std::int64_t>();
}

int JsonObject::small_integer(std::string_view name, int least) {
  const std::int64_t value = integer(name, least);
  if (value > std::numeric_limits<int>::max()) refuse(place_of(name), "an integer of 31 bits", value);
  return static_cast<int>(value);
}

JsonObject JsonObject::object(std::string_view name) { return {take(name), place_of(name)}; }

void JsonObject::keep_rest_of(std::string_view name, const JsonObject& inner) {
  nlohmann::json rest = inner.rest();
  if (!rest.empty()) rest_of_inner_[std::string(name)] = std::move(rest);
}

nlohmann::json JsonObject::rest() const {
  nlohmann::json rest = rest_of_inner_;
  for (const auto& [name, value] : json_.items()) {
    if (std::ranges::find(taken_, name) == taken_.end()) rest[name] = value;
  }
  return rest;
}

}  // namespace packjit
