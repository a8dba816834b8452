#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checking/checks.hpp"
#include "checking/compare.hpp"
#include "checking/inputs.hpp"
#include "runtime/device.hpp"

/// Tools of the tests of the public faults K1 to K22 (one test a fault, on host execution and on a GPU).
namespace packjit::checking {

/// Parametrised by the device's kind; skipped, with the reason, where there is no GPU.
class KnownFaults : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override;
  [[nodiscard]] Device& device() { return *device_; }

  /// A small case: dim 4, row by row lengths (negative: padding), all options, no states.
  [[nodiscard]] static Case small(Operator op, const std::vector<std::vector<std::int64_t>>& rows,
                                  Dtype dtype = Dtype::fp32);
  [[nodiscard]] static Case with_states(Case c);
  /// The oracle's values, within the bounds.
  void expect_oracle(const Case& c);
  void expect_oracle_and_padded(const Case& c);

 private:
  std::shared_ptr<Device> device_;
};

void expect_pass(const std::vector<Result>& results);
[[nodiscard]] HostTensor fp32_tensor(std::vector<std::int64_t> shape, const std::vector<double>& values);
/// `count` times `value`.
[[nodiscard]] std::vector<double> repeated(double value, std::int64_t count);

/// One call of an operator on tensors with any strides and base addresses, in device memory. Tensors without a stride
/// of their own are dense. Outputs are poisoned before the call, guard zones checked after.
class StridedCall {
 public:
  StridedCall(Device& device, const Case& check_case);
  /// Strides in elements, of an input or an output; `offset` elements lie between the buffer's start and the tensor.
  void place(const std::string& tensor, std::vector<std::int64_t> stride, std::int64_t offset = 0);
  [[nodiscard]] HostTensors run(const HostTensors& inputs);

 private:
  struct Place {
    std::vector<std::int64_t> stride;
    std::int64_t offset = 0;
  };
  struct Stored;
  Device& device_;
  Case case_;
  std::map<std::string, Place, std::less<>> places_;
};

}  // namespace packjit::checking
