#pragma once

#include <stdexcept>

namespace packjit {

// Bad input (a wrong option, shape, dtype, file) is std::invalid_argument everywhere. The two other kinds of failure
// that a caller can act on have a type here. Every message says what was attempted, what was found and what to do.

/// The environment lacks something: a GPU, NVRTC, a driver, a host compiler. Exit status 3.
struct EnvironmentError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A check found a wrong result: a value outside its bound, a damaged guard zone. Exit status 4.
struct CheckFailed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace packjit
