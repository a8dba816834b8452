#include "cli/position_file.hpp"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <system_error>

namespace packjit {
namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void fail(std::string_view expected) {
  throw std::invalid_argument(
      fmt::format("cannot read a position in a training stream: expected {}, as position_json writes it", expected));
}

std::int64_t count_in(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_integer() || found->get<std::int64_t>() < 0) {
    fail(fmt::format("a whole number from 0 on as \"{}\"", key));
  }
  return found->get<std::int64_t>();
}

}  // namespace

std::string position_json(const StreamPosition& position) {
  return Json{
      {"epoch", position.epoch}, {"step", position.step}, {"fingerprint", fmt::format("{}", position.fingerprint)}}
      .dump();
}

StreamPosition parse_position(std::string_view text) {
  const Json object = Json::parse(text, nullptr, false);
  if (!object.is_object()) fail("a JSON object");
  StreamPosition position;
  position.epoch = count_in(object, "epoch");
  position.step = count_in(object, "step");
  const auto fingerprint = object.find("fingerprint");
  if (fingerprint == object.end() || !fingerprint->is_string()) fail("digits in quotes as \"fingerprint\"");
  const auto& digits = fingerprint->get_ref<const std::string&>();
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), position.fingerprint);
  if (error != std::errc() || end != digits.data() + digits.size()) fail("digits in quotes as \"fingerprint\"");
  return position;
}

}  // namespace packjit
