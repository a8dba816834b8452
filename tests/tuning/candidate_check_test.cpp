#include "tuning/candidate_check.hpp"

#include <gtest/gtest.h>

#include "database/builtin_config.hpp"
#include "runtime/device_wrapper.hpp"
#include "runtime/errors.hpp"
#include "tests/tuning/planted.hpp"

namespace packjit {
namespace {

/// Host execution of kernels with a planted fault.
class PlantedDevice final : public DeviceWrapper {
 public:
  using DeviceWrapper::DeviceWrapper;
  [[nodiscard]] std::shared_ptr<const Module> load(const Spec& spec, const Config& config) override {
    return load_text(with_fault(generate(spec, config, Target::host).text, config.values["block"]));
  }
};

TEST(CandidateCheck, TheBuiltInConfigsPass) {
  const auto device = open_host_device();
  for (const Operator op : kOperators) {
    const Spec spec(op);
    const NumericalCheck check = CandidateCheck(*device, spec)(builtin_config(spec, "host"));
    EXPECT_LT(check.error, 1) << name_of(op);
    EXPECT_GT(check.error, 0) << name_of(op);
  }
}

TEST(CandidateCheck, StoredCheckpointsAreMadeForTheBackward) {
  const auto device = open_host_device();
  Spec spec(Operator::ssm_pack_bwd);
  spec.values.set("checkpoints", 1);
  EXPECT_LT(CandidateCheck(*device, spec)(builtin_config(spec, "host")).error, 1);
}

std::string failure_of(int block) {
  const auto host = open_host_device();
  PlantedDevice device(*host);
  const Spec spec(Operator::conv1d_pack_fwd);
  const CandidateCheck check(device, spec);
  Config config = builtin_config(spec, "host");
  EXPECT_LT(check(config).error, 1) << "without a fault";
  config.values.set("block", block);
  try {
    static_cast<void>(check(config));
  } catch (const CheckFailed& error) {
    return error.what();
  }
  return "";
}

TEST(CandidateCheck, K43_AVariantThatSkipsTheTailIsRefused) {
  const std::string failure = failure_of(kSkipsTheTail);
  EXPECT_NE(failure.find("conv1d_pack_fwd bf16 out"), std::string::npos) << failure;
}

TEST(CandidateCheck, K42_WhatACandidateDoesNotWriteIsNotTheLastOnesResult) {
  const auto host = open_host_device();
  PlantedDevice device(*host);
  const Spec spec(Operator::conv1d_pack_fwd);
  const CandidateCheck check(device, spec);
  Config config = builtin_config(spec, "host");
  static_cast<void>(check(config));  // leaves the right values in memory that is taken again
  config.values.set("block", kSkipsTheTail);
  EXPECT_THROW(static_cast<void>(check(config)), CheckFailed);
}

TEST(CandidateCheck, K41_AVariantThatWritesBehindItsOutputIsRefused) {
  const std::string failure = failure_of(kWritesBehind);
  EXPECT_FALSE(failure.empty());
}

}  // namespace
}  // namespace packjit
