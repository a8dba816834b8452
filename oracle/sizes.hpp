#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <stdexcept>
#include <string>

#include "oracle/oracle.hpp"

namespace packjit::oracle {

/// Throws std::invalid_argument unless `value` is at least `least`. `call` and `name` go into the message.
inline void require_at_least(const char* call, const char* name, std::int64_t value, std::int64_t least) {
  if (value >= least) return;
  throw std::invalid_argument(std::string("oracle ") + call + ": " + name + " must be at least " +
                              std::to_string(least) + ", found " + std::to_string(value));
}

/// The number of elements of a dense array of this shape, whose sizes are not negative. Throws
/// std::invalid_argument where it does not fit 64 bits.
inline std::int64_t element_count(const char* call, std::initializer_list<std::int64_t> shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) {
    if (size != 0 && count > std::numeric_limits<std::int64_t>::max() / size) {
      throw std::invalid_argument(std::string("oracle ") + call + ": the sizes multiply to more than 64 bits hold");
    }
    count *= size;
  }
  return count;
}

enum class Presence { required, optional };

/// Throws std::invalid_argument unless `array` fills `shape`; an optional array may also be empty.
inline void require_shape(const char* call, const char* name, const Array& array,
                          std::initializer_list<std::int64_t> shape, Presence presence = Presence::required) {
  const auto expected = element_count(call, shape);
  const auto found = static_cast<std::int64_t>(array.size());
  if (found == expected || (presence == Presence::optional && array.empty())) return;
  std::string dims;
  for (const std::int64_t size : shape) dims += (dims.empty() ? "" : ", ") + std::to_string(size);
  throw std::invalid_argument(std::string("oracle ") + call + ": " + name + " needs " + std::to_string(expected) +
                              " elements, shape (" + dims + ")" + (presence == Presence::optional ? ", or none" : "") +
                              "; found " + std::to_string(found));
}

}  // namespace packjit::oracle
