#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <stdexcept>

#include <fmt/format.h>

#include "api/status.hpp"

namespace packjit::api {

/// No struct of any version is as long: what says it is was not initialised.
inline constexpr std::size_t kLongestStruct = 4096;

/// Throws std::invalid_argument unless struct_size can be that of a version of the struct.
inline void check_struct_size(std::size_t found, std::size_t expected, const char* name) {
  if (found >= expected && found <= kLongestStruct) return;
  throw std::invalid_argument(
      fmt::format("{}: struct_size is {}, expected {}; set it to sizeof({}), and members without a value to 0", name,
                  found, expected, name));
}

/// The caller's struct, as far as this library knows it. One of a newer header is longer: what stands there has to be
/// 0. Throws std::invalid_argument for null, for a struct_size that none has and for what is not known here.
template <class Struct>
[[nodiscard]] const Struct& read_struct(const Struct* given, const char* name) {
  if (given == nullptr) throw std::invalid_argument(fmt::format("{} is NULL", name));
  if (given->struct_size == sizeof(Struct)) return *given;
  check_struct_size(given->struct_size, sizeof(Struct), name);
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  if (std::any_of(bytes + sizeof(Struct), bytes + given->struct_size, [](unsigned char byte) { return byte != 0; })) {
    throw std::invalid_argument(
        fmt::format("{} has {} bytes, {} more than this library (version {}) knows, and they are not 0: use a newer "
                    "library, or leave what is new unset",
                    name, given->struct_size, given->struct_size - sizeof(Struct), packjit_version()));
  }
  return *given;
}

/// Throws std::invalid_argument where write_struct() could not write: for calls that change something before they do.
template <class Struct>
void check_result(const Struct* to, const char* name) {
  if (to == nullptr) throw std::invalid_argument(fmt::format("{} is NULL", name));
  check_struct_size(to->struct_size, sizeof(Struct), name);
}

/// Copies a result into the caller's struct, which may be longer.
template <class Struct>
void write_struct(Struct* to, Struct value, const char* name) {
  check_result(to, name);
  value.struct_size = to->struct_size;
  *to = value;
}

}  // namespace packjit::api
