#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "generator/operators.hpp"
#include "packjit/packjit.h"
#include "runtime/driver.hpp"

namespace packjit {

/// Forward and backward of both operators on tensors so small that the host's part is what counts, called through the C
/// interface as an embedding application does. In the context that is current, on a stream of its own.
///
/// Failures of a call throw EnvironmentError, CheckFailed or std::runtime_error with the library's message.
class HostStep {
 public:
  /// Takes the tensors' memory and fills it with zeros. No call of the library yet.
  explicit HostStep(const Driver& driver);
  HostStep(const HostStep&) = delete;
  HostStep& operator=(const HostStep&) = delete;
  /// The device outlives it.
  ~HostStep();

  /// Makes operators and a map with the device, and takes no memory of its own; what was made with another device goes.
  void use(packjit_device* device);
  void run(Operator op);
  void wait() const;
  [[nodiscard]] CUstream stream() const { return stream_; }

 private:
  struct Call;
  const Driver& driver_;
  CUstream stream_ = nullptr;
  CUdeviceptr memory_ = 0;  // of all tensors
  std::size_t used_ = 0;
  std::map<Operator, std::unique_ptr<Call>> calls_;
  packjit_operator* conv_ = nullptr;
  packjit_operator* scan_ = nullptr;
  packjit_map* map_ = nullptr;
};

/// The library's own device; the caller releases it.
[[nodiscard]] packjit_device* open_gpu();
/// The same over a driver with functions of the caller's own, which outlives it.
[[nodiscard]] packjit_device* open_gpu_over(const Driver& driver);
/// A device over a driver that is not the machine's own one, or not quite.
using OpenDevice = std::function<packjit_device*(const Driver& driver)>;

/// What one warm call costs the host, beside as many launches of an empty kernel with an argument of the same size.
struct CallCost {
  Operator op;
  int kernels = 0;  ///< launches of a call
  std::int64_t calls = 0;
  double call_ns = 0;                                                              ///< of a whole call, median
  double launch_ns = 0;                                                            ///< of one bare launch, median
  [[nodiscard]] double above_ns() const { return call_ns / kernels - launch_ns; }  ///< a kernel
};
/// CUDA C++ of the empty kernels that call_costs() launches.
[[nodiscard]] std::string empty_kernels();
/// `calls` of each operator, in groups that the driver's queue holds, each beside a group of bare launches; the GPU is
/// waited for between groups, outside of the times. `empty` has empty_kernels() in the current context.
[[nodiscard]] std::vector<CallCost> call_costs(const Driver& driver, CUmodule empty, const OpenDevice& open,
                                               std::int64_t calls);

}  // namespace packjit
