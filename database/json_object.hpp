#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace packjit {

/// Reads a JSON object field by field; what is left at the end is unknown to this version. Every failure is
/// std::invalid_argument that names the place and what was found there. Copies nothing: `json` must outlive it.
class JsonObject {
 public:
  JsonObject(const nlohmann::json& json, std::string place);

  /// `name` must outlive the object.
  [[nodiscard]] const nlohmann::json& take(std::string_view name);
  [[nodiscard]] bool has(std::string_view name) const { return json_.contains(name); }
  [[nodiscard]] const std::string& text(std::string_view name);
  [[nodiscard]] double number(std::string_view name);  ///< 0 or more
  [[nodiscard]] std::int64_t integer(std::string_view name, std::int64_t least = 0);
  [[nodiscard]] int small_integer(std::string_view name, int least = 0);
  [[nodiscard]] JsonObject object(std::string_view name);
  /// Keeps what an object inside this one did not know.
  void keep_rest_of(std::string_view name, const JsonObject& inner);
  [[nodiscard]] nlohmann::json rest() const;
  [[nodiscard]] std::string place_of(std::string_view name) const;

 private:
  const nlohmann::json& json_;
  std::string place_;
  std::vector<std::string_view> taken_;
  nlohmann::json rest_of_inner_ = nlohmann::json::object();
};

}  // namespace packjit
