#pragma once

#include <stdexcept>

namespace packjit {

// Bad input (a wrong option, shape, dtype, file) is std::invalid_argument everywhere. The other kinds of failure
// that a caller can act on have a type here. Every message says what was attempted, what was found and what to do.

/// The environment lacks something: a GPU, NVRTC, a driver, a host compiler, room on a disk. Exit status 3.
struct EnvironmentError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A check found a wrong result: a value outside its bound, a damaged guard zone. Exit status 4.
struct CheckFailed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The CUDA driver refused a call; an earlier kernel may have failed.
struct DriverError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// There is not that much memory, on the GPU or on the host. Exit status 3.
struct OutOfMemory : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A stream is being captured and the call needs what a capture cannot hold. Thrown before the stream is touched.
struct NotPreparedInCapture : std::logic_error {
  using std::logic_error::logic_error;
};

}  // namespace packjit
