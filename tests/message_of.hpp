#pragma once

#include <stdexcept>
#include <string>

namespace packjit::test {

/// What `run` throws as an E, or "nothing was thrown".
template <typename E = std::invalid_argument, typename F>
std::string message_of(F&& run) {
  try {
    run();
  } catch (const E& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace packjit::test
