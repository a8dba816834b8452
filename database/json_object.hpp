#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace packjit {

/// Reads a JSON object field by field; what is left at the end is unknown to this version. Every failure is
/// std::invalid_argument that names the place and what was found there.
class JsonObject {
 public:
  JsonObject(nlohmann::json json, std::string place);

  [[nodiscard]] nlohmann::json take(const std::string& name);
  [[nodiscard]] bool has(const std::string& name) const { return json_.contains(name); }
  [[nodiscard]] std::string text(const std::string& name);
  [[nodiscard]] double number(const std::string& name);  ///< 0 or more
  [[nodiscard]] std::int64_t integer(const std::string& name, std::int64_t least = 0);
  [[nodiscard]] int small_integer(const std::string& name, int least = 0);
  [[nodiscard]] JsonObject object(const std::string& name);
  /// Puts back what an object inside this one did not know.
  void keep_rest_of(const std::string& name, JsonObject inner);
  [[nodiscard]] nlohmann::json rest() && { return std::move(json_); }
  [[nodiscard]] std::string place_of(const std::string& name) const;

 private:
  nlohmann::json json_;
  std::string place_;
};

}  // namespace packjit
