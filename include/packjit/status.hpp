#pragma once
// Errors as values. A part of packjit/packjit.hpp.

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "packjit/packjit.h"

namespace packjit {
inline namespace v1 {

/// What kind of failure it is, and so who can do something about it; see packjit.h for each.
enum class Code {
  ok = PACKJIT_OK,
  bad_argument = PACKJIT_BAD_ARGUMENT,
  environment = PACKJIT_ENVIRONMENT,
  check_failed = PACKJIT_CHECK_FAILED,
  internal = PACKJIT_INTERNAL,
  not_prepared_in_capture = PACKJIT_NOT_PREPARED_IN_CAPTURE,
  out_of_memory = PACKJIT_OUT_OF_MEMORY,
  driver_error = PACKJIT_DRIVER_ERROR
};

/// How a call ended. A plain value. The message says what was attempted, what was found and what to do.
class [[nodiscard]] Status {
 public:
  Status() = default;
  /// Of a call of the C interface on this thread.
  explicit Status(packjit_status status) : code_(static_cast<Code>(status)) {
    if (status != PACKJIT_OK) message_ = packjit_last_error();
  }
  /// A failure that the headers themselves found.
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}
  [[nodiscard]] bool ok() const { return code_ == Code::ok; }
  explicit operator bool() const { return ok(); }
  [[nodiscard]] Code code() const { return code_; }
  [[nodiscard]] const std::string& message() const { return message_; }

 private:
  Code code_ = Code::ok;
  std::string message_;
};

/// A value, or why there is none. Asking a failure for its value ends the program with the message.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : content_(std::move(value)) {}           // NOLINT(google-explicit-constructor)
  Result(Status failure) : content_(std::move(failure)) {}  // NOLINT(google-explicit-constructor)
  [[nodiscard]] bool ok() const { return std::holds_alternative<T>(content_); }
  explicit operator bool() const { return ok(); }
  [[nodiscard]] Status status() const { return ok() ? Status() : std::get<Status>(content_); }
  [[nodiscard]] const T& value() const {
    if (!ok()) {
      std::fprintf(stderr, "packjit: a failure has no value: %s\n", std::get<Status>(content_).message().c_str());
      std::abort();
    }
    return std::get<T>(content_);
  }
  [[nodiscard]] T& value() { return const_cast<T&>(std::as_const(*this).value()); }
  [[nodiscard]] T& operator*() { return value(); }
  [[nodiscard]] T* operator->() { return &value(); }
  [[nodiscard]] T take() { return std::move(value()); }

 private:
  std::variant<T, Status> content_;
};

namespace detail {
template <typename Handle, void (*kRelease)(Handle*)>
struct Releaser {
  void operator()(Handle* handle) const noexcept { kRelease(handle); }
};
template <typename Handle, void (*kRelease)(Handle*)>
using Owned = std::unique_ptr<Handle, Releaser<Handle, kRelease>>;
}  // namespace detail

}  // namespace v1
}  // namespace packjit
