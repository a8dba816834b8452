#include "api/status.hpp"

#include <fmt/format.h>

#include <new>
#include <stdexcept>

#include "runtime/errors.hpp"

namespace packjit::api {
namespace {

// Static objects may still call when those of the thread are gone.
thread_local bool thread_has_ended = false;
struct LastError {
  std::string message;
  ~LastError() { thread_has_ended = true; }
};
thread_local LastError last_error;

}  // namespace

Outcome outcome_of_exception() noexcept {
  const auto made = [](packjit_status status, const char* message) noexcept -> Outcome {
    try {
      return {status, message};
    } catch (...) {
      return {PACKJIT_OUT_OF_MEMORY, {}};
    }
  };
  try {
    throw;
  } catch (const NotPreparedInCapture& error) {
    return made(PACKJIT_NOT_PREPARED_IN_CAPTURE, error.what());
  } catch (const std::invalid_argument& error) {
    return made(PACKJIT_BAD_ARGUMENT, error.what());
  } catch (const EnvironmentError& error) {
    return made(PACKJIT_ENVIRONMENT, error.what());
  } catch (const CheckFailed& error) {
    return made(PACKJIT_CHECK_FAILED, error.what());
  } catch (const DriverError& error) {
    return made(PACKJIT_DRIVER_ERROR, error.what());
  } catch (const OutOfMemory& error) {
    return made(PACKJIT_OUT_OF_MEMORY, error.what());
  } catch (const std::length_error&) {
    return made(PACKJIT_OUT_OF_MEMORY, "the host has too little memory for sizes like these");
  } catch (const std::bad_alloc&) {
    return made(PACKJIT_OUT_OF_MEMORY, "the host has too little memory");
  } catch (const std::exception& error) {
    return made(PACKJIT_INTERNAL, error.what());
  } catch (...) {
    return made(PACKJIT_INTERNAL, "something failed that says nothing of itself");
  }
}

packjit_status report(const Outcome& outcome) noexcept {
  if (outcome.status == PACKJIT_OK) return PACKJIT_OK;
  if (thread_has_ended) return outcome.status;
  try {
    last_error.message = outcome.message;
  } catch (...) {
    last_error.message.clear();
  }
  return outcome.status;
}

void require(const void* pointer, const char* function, const char* argument) {
  if (pointer == nullptr) throw std::invalid_argument(fmt::format("{}: {} is NULL", function, argument));
}

}  // namespace packjit::api

extern "C" {

const char* packjit_status_name(packjit_status status) {
  constexpr const char* kNames[] = {"ok",
                                    "bad_argument",
                                    "environment",
                                    "check_failed",
                                    "internal",
                                    "not_prepared_in_capture",
                                    "out_of_memory",
                                    "driver_error"};
  return status >= 0 && status < static_cast<packjit_status>(std::size(kNames)) ? kNames[status] : "unknown";
}

const char* packjit_last_error(void) {
  using packjit::api::last_error;
  return packjit::api::thread_has_ended ? "the thread has ended, and with it what it was told"
                                        : last_error.message.c_str();
}

const char* packjit_version(void) { return PACKJIT_VERSION; }

}  // extern "C"
