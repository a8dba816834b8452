#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace packjit {

/// One named choice of a Spec or a Config. Every value is an integer; `labels`, where given, are the spellings of
/// the values `minimum`, `minimum + 1`, ...
struct Field {
  std::string_view name;  ///< as on the command line, in keys and in JSON: "d_state"
  int minimum;
  int maximum;
  int fallback;  ///< the value of a default Spec or Config
  std::span<const std::string_view> labels;
  std::string_view meaning;  ///< one line of help
  bool later = false;        ///< came after the first keys and documents, which do not name it: see FieldValues::names
};

/// One value for each field of a table, always complete and always in range.
///
/// A plain value: copies are independent; concurrent reads are safe. Setters throw std::invalid_argument, whose message
/// names the field, what was given and what is allowed, and leave the values as they were.
class FieldValues {
 public:
  /// All fields at their fallback. `table` must outlive the object (the tables are constants).
  explicit FieldValues(std::span<const Field> table);

  [[nodiscard]] std::span<const Field> table() const { return table_; }
  [[nodiscard]] bool has(std::string_view name) const;

  /// The value of a field; throws std::invalid_argument for a field that the table does not have.
  [[nodiscard]] int operator[](std::string_view name) const;
  void set(std::string_view name, int value);
  /// Takes a label ("bf16") or, for a field without labels, a decimal integer ("16").
  void set_text(std::string_view name, std::string_view text);

  /// The spelling of one value: its label, or the integer in decimal.
  [[nodiscard]] std::string text(std::string_view name) const;
  /// Whether keys, sources and documents name the field: all of them, but a later one only where it is not at its
  /// fallback. So a field that is added changes no key and no source of a Spec that does not use it.
  [[nodiscard]] bool names(const Field& field) const { return !field.later || (*this)[field.name] != field.fallback; }
  /// The values that keys name, in table order: "dtype=bf16 d_state=16".
  [[nodiscard]] std::string text() const;

  friend bool operator==(const FieldValues& a, const FieldValues& b) {
    return a.table_.data() == b.table_.data() && a.values_ == b.values_;
  }

 private:
  [[nodiscard]] std::size_t index(std::string_view name) const;
  std::span<const Field> table_;
  std::vector<int> values_;
};

}  // namespace packjit
