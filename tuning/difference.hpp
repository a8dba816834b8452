#pragma once

#include <memory>

#include "runtime/cuda_device.hpp"
#include "runtime/tensor.hpp"

namespace packjit {

/// CUDA C++ of the kernel `sum_squares`.
[[nodiscard]] std::string difference_source();

/// Compares tensors that are too large for the host where they lie. Must not outlive the device.
class Difference {
 public:
  explicit Difference(CudaDevice& device);
  /// |a - b| / |b| in the L2 norm, of dense tensors of one type and as many elements; |a - b| where b is zero. Values
  /// of the same bits are equal, NaN too: what both leave as it was does not count. Infinite where one is no number and
  /// the other another one.
  [[nodiscard]] double operator()(const TensorView& a, const TensorView& b);

 private:
  CudaDevice& device_;
  std::shared_ptr<const Module> kernel_;
  Buffer sums_;
};

}  // namespace packjit
