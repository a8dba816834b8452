#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace packjit {

/// Value of the integer expression behind `#if` in a template: numbers, names, ( ) ! * / % + - < <= > >= == != && ||.
/// `value_of` is asked for every name that stands in it, also where the result is already decided.
/// Throws std::logic_error on anything else.
[[nodiscard]] long long evaluate_condition(std::string_view text,
                                           const std::function<long long(std::string_view)>& value_of);

/// Whether `c` can begin, or stand inside, an identifier.
[[nodiscard]] bool is_identifier_start(char c);
[[nodiscard]] bool is_identifier_part(char c);

}  // namespace packjit
