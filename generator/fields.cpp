#include "generator/fields.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <stdexcept>

namespace packjit {
namespace {

std::string allowed(const Field& field) {
  if (!field.labels.empty()) return fmt::format("one of {}", fmt::join(field.labels, ", "));
  return fmt::format("an integer from {} to {}", field.minimum, field.maximum);
}

}  // namespace

FieldValues::FieldValues(std::span<const Field> table) : table_(table) {
  for (const Field& field : table) values_.push_back(field.fallback);
}

std::size_t FieldValues::index(std::string_view name) const {
  for (std::size_t i = 0; i < table_.size(); ++i) {
    if (table_[i].name == name) return i;
  }
  std::string names;
  for (const Field& field : table_) names += fmt::format("{}{}", names.empty() ? "" : ", ", field.name);
  throw std::invalid_argument(fmt::format("there is no field '{}' here; the fields are {}", name, names));
}

bool FieldValues::has(std::string_view name) const {
  for (const Field& field : table_) {
    if (field.name == name) return true;
  }
  return false;
}

int FieldValues::operator[](std::string_view name) const { return values_[index(name)]; }

void FieldValues::set(std::string_view name, int value) {
  const std::size_t i = index(name);
  const Field& field = table_[i];
  if (value < field.minimum || value > field.maximum) {
    throw std::invalid_argument(fmt::format("{} = {} is out of range: expected {}", name, value, allowed(field)));
  }
  values_[i] = value;
}

void FieldValues::set_text(std::string_view name, std::string_view text) {
  const Field& field = table_[index(name)];
  for (std::size_t i = 0; i < field.labels.size(); ++i) {
    if (field.labels[i] == text) return set(name, field.minimum + static_cast<int>(i));
  }
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (!field.labels.empty() || error != std::errc{} || end != text.data() + text.size()) {
    throw std::invalid_argument(fmt::format("{} = '{}' is not understood: expected {}", name, text, allowed(field)));
  }
  set(name, value);
}

std::string FieldValues::text(std::string_view name) const {
  const std::size_t i = index(name);
  const Field& field = table_[i];
  if (field.labels.empty()) return fmt::format("{}", values_[i]);
  return std::string(field.labels[static_cast<std::size_t>(values_[i] - field.minimum)]);
}

std::string FieldValues::text() const {
  std::string all;
  for (const Field& field : table_) {
    if (!names(field)) continue;
    all += fmt::format("{}{}={}", all.empty() ? "" : " ", field.name, text(field.name));
  }
  return all;
}

}  // namespace packjit
