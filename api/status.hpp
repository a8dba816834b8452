#pragma once

#include <concepts>
#include <exception>
#include <string>

#include "packjit/packjit.h"

namespace packjit::api {

/// How a call ended, in the words of the C interface.
struct Outcome {
  packjit_status status = PACKJIT_OK;
  std::string message;
};

/// Of the exception that is being handled.
[[nodiscard]] Outcome outcome_of_exception() noexcept;

/// Runs `work`; no exception comes out.
template <std::invocable Work>
[[nodiscard]] Outcome outcome_of(const Work& work) noexcept {
  try {
    work();
    return {};
  } catch (...) {
    return outcome_of_exception();
  }
}

/// Keeps the message for packjit_last_error() on this thread.
packjit_status report(const Outcome& outcome) noexcept;

/// What every function of the C interface does around its work.
template <std::invocable Work>
packjit_status guarded(const Work& work) noexcept {
  try {
    work();
    return PACKJIT_OK;
  } catch (...) {
    return report(outcome_of_exception());
  }
}

/// Throws std::invalid_argument, naming the argument, where a pointer is null.
void require(const void* pointer, const char* function, const char* argument);

}  // namespace packjit::api
