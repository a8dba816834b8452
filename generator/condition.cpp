#include "generator/condition.hpp"

#include <fmt/format.h>

#include <stdexcept>

namespace packjit {
namespace {

/// Binary operators, from the loosest binding to the tightest; longer spellings before their prefixes.
struct BinaryOperator {
  std::string_view spelling;
  int binding;
  long long (*apply)(long long, long long);
};
constexpr int kTightest = 6;
constexpr BinaryOperator kBinary[] = {
    {"||", 1, [](long long a, long long b) -> long long { return a != 0 || b != 0 ? 1 : 0; }},
    {"&&", 2, [](long long a, long long b) -> long long { return a != 0 && b != 0 ? 1 : 0; }},
    {"==", 3, [](long long a, long long b) -> long long { return a == b ? 1 : 0; }},
    {"!=", 3, [](long long a, long long b) -> long long { return a != b ? 1 : 0; }},
    {"<=", 4, [](long long a, long long b) -> long long { return a <= b ? 1 : 0; }},
    {">=", 4, [](long long a, long long b) -> long long { return a >= b ? 1 : 0; }},
    {"<", 4, [](long long a, long long b) -> long long { return a < b ? 1 : 0; }},
    {">", 4, [](long long a, long long b) -> long long { return a > b ? 1 : 0; }},
    {"+", 5, [](long long a, long long b) -> long long { return a + b; }},
    {"-", 5, [](long long a, long long b) -> long long { return a - b; }},
    {"*", kTightest, [](long long a, long long b) -> long long { return a * b; }},
    {"/", kTightest, [](long long a, long long b) -> long long { return a / b; }},
    {"%", kTightest, [](long long a, long long b) -> long long { return a % b; }},
};

class Parser {
 public:
  Parser(std::string_view text, const std::function<long long(std::string_view)>& value_of)
      : whole_(text), rest_(text), value_of_(value_of) {}

  long long parse() {
    const long long value = binary(1);
    skip_blanks();
    if (!rest_.empty()) fail("an operator");
    return value;
  }

 private:
  long long binary(int binding) {
    if (binding > kTightest) return unary();
    long long left = binary(binding + 1);
    while (const BinaryOperator* op = take_operator(binding)) {
      const long long right = binary(binding + 1);
      if ((op->spelling == "/" || op->spelling == "%") && right == 0) fail("a divisor that is not 0");
      left = op->apply(left, right);
    }
    return left;
  }

  long long unary() {
    skip_blanks();
    if (rest_.empty()) fail("a value");
    const char c = rest_.front();
    if (c == '!' || c == '-') {
      rest_.remove_prefix(1);
      const long long value = unary();
      return c == '-' ? -value : (value == 0 ? 1 : 0);
    }
    if (c == '(') {
      rest_.remove_prefix(1);
      const long long value = binary(1);
      skip_blanks();
      if (rest_.empty() || rest_.front() != ')') fail("')'");
      rest_.remove_prefix(1);
      return value;
    }
    if (is_identifier_start(c)) return value_of_(take_while(is_identifier_part));
    const std::string_view digits = take_while([](char d) { return d >= '0' && d <= '9'; });
    if (digits.empty()) fail("a value");
    long long value = 0;
    for (const char digit : digits) value = value * 10 + (digit - '0');
    return value;
  }

  const BinaryOperator* take_operator(int binding) {
    skip_blanks();
    for (const BinaryOperator& op : kBinary) {
      if (!rest_.starts_with(op.spelling)) continue;
      if (op.binding != binding) return nullptr;
      rest_.remove_prefix(op.spelling.size());
      return &op;
    }
    return nullptr;
  }

  template <typename Predicate>
  std::string_view take_while(Predicate predicate) {
    std::size_t n = 0;
    while (n < rest_.size() && predicate(rest_[n])) ++n;
    const std::string_view taken = rest_.substr(0, n);
    rest_.remove_prefix(n);
    return taken;
  }

  void skip_blanks() {
    take_while([](char c) { return c == ' ' || c == '\t'; });
  }

  [[noreturn]] void fail(std::string_view expected) const {
    throw std::logic_error(fmt::format("template condition '{}': expected {} before '{}'", whole_, expected, rest_));
  }

  std::string_view whole_;
  std::string_view rest_;
  const std::function<long long(std::string_view)>& value_of_;
};

}  // namespace

bool is_identifier_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_identifier_part(char c) { return is_identifier_start(c) || (c >= '0' && c <= '9'); }

long long evaluate_condition(std::string_view text, const std::function<long long(std::string_view)>& value_of) {
  return Parser(text, value_of).parse();
}

}  // namespace packjit
