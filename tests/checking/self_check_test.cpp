#include "checking/self_check.hpp"

#include <gtest/gtest.h>

#include "checking/kernels.hpp"
#include "generator/sequence_map.hpp"
#include "runtime/device_wrapper.hpp"
#include "runtime/errors.hpp"

namespace packjit::checking {
namespace {

/// Loads a kernel with one option switched where the right one is asked for.
class WrongKernel final : public DeviceWrapper {
 public:
  WrongKernel(Device& inner, std::string field) : DeviceWrapper(inner), field_(std::move(field)) {}
  [[nodiscard]] std::shared_ptr<const Module> load(const Spec& spec, const Config& config) override {
    Spec wrong = spec;
    wrong.values.set(field_, 1 - spec.values[field_]);
    return DeviceWrapper::load(wrong, config);
  }

 private:
  std::string field_;
};

/// As an application's call chooses it.
Kernel chosen(Spec spec, const std::string& arch, const Workload& work = {}) {
  return {spec, builtin_config(spec, arch, work)};
}

TEST(SelfCheck, ItsCaseLoadsExactlyTheKernelInQuestion) {
  int pairs = 0;
  const Workload workloads[] = {{}, {16, 1, 64}, {1 << 16, 1, 4096, 1 << 16}, {4096, 64, 2048, 512}};
  for (const Operator op : kOperators) {
    std::vector<Spec> specs = {Spec(op)};
    // Each option away from its default, and all of them.
    Spec all(op);
    for (const Field& field : spec_fields(op)) {
      for (int value = field.minimum; value <= std::min(field.maximum, field.minimum + 3); ++value) {
        Spec one(op);
        one.values.set(field.name, value);
        specs.push_back(one);
      }
      // The later ones have kernels of their own, which not every option goes with.
      if (!field.labels.empty() && !field.later) all.values.set(field.name, field.maximum);
    }
    specs.push_back(all);
    for (const Spec& spec : specs) {
      for (const char* arch : {"sm_80", "sm_90"}) {
        for (const Workload& work : workloads) {
          const Kernel wanted = chosen(spec, arch, work);
          const Case c = self_check_case(wanted.first, wanted.second);
          validate(c);
          EXPECT_EQ(kernel_of(c, config_of(c, arch)), wanted)
              << name_of(op) << ' ' << spec.values.text() << ' ' << wanted.second.values.text();
          ++pairs;
        }
      }
    }
  }
  EXPECT_GT(pairs, 400);
}

TEST(SelfCheck, RightKernelsPass) {
  const auto device = open_host_device();
  for (const Operator op : kOperators) {
    for (const char* dtype : {"fp32", "fp16", "bf16"}) {
      Spec spec(op);
      spec.values.set_text("dtype", dtype);
      spec.values.set("initial_states", 1);  // but no final ones
      if (is_scan(op)) spec.values.set("checkpoints", 1);
      const Kernel kernel = chosen(spec, "host");
      EXPECT_NO_THROW(self_check(*device, kernel.first, kernel.second)) << name_of(op) << ' ' << dtype;
    }
  }
  for (const int d_state : {1, 5, 128}) {
    for (const Operator op : {Operator::ssm_pack_fwd, Operator::ssm_pack_bwd}) {
      Spec spec(op);
      spec.values.set("d_state", d_state);
      spec.values.set("groups", 1);
      const Kernel kernel = chosen(spec, "host");
      EXPECT_NO_THROW(self_check(*device, kernel.first, kernel.second)) << name_of(op) << ' ' << d_state;
    }
  }
  for (const Operator op : {Operator::ssm_pack_fwd, Operator::ssm_pack_bwd}) {
    Spec spec(op);
    spec.values.set("complex_A", 1);
    spec.values.set("constant_C", 1);
    spec.values.set("groups", 1);
    const Kernel kernel = chosen(spec, "host");
    EXPECT_NO_THROW(self_check(*device, kernel.first, kernel.second)) << name_of(op);
  }
  Spec scan(Operator::ssm_pack_fwd);
  Kernel segmented = chosen(scan, "host");
  segmented.second.values.set("segments", 1);
  EXPECT_NO_THROW(self_check(*device, segmented.first, segmented.second));
}

TEST(SelfCheck, TheMapOfEveryFormAndTypePasses) {
  const auto device = open_host_device();
  for (const auto& [form, index] : {std::pair{"position_indices", "uint16"}, std::pair{"seq_idx", "int16"},
                                    std::pair{"cu_seqlens", "int64"}, std::pair{"rows", "int32"}}) {
    Spec spec(Operator::sequence_map);
    spec.values.set_text("form", form);
    spec.values.set_text("index", index);
    const Kernel kernel = chosen(spec, "host");
    EXPECT_NO_THROW(self_check(*device, kernel.first, kernel.second)) << form;
  }
}

TEST(SelfCheck, AWrongKernelIsNamedWithItsError) {
  const auto device = open_host_device();
  WrongKernel wrong(*device, "activation");
  const Kernel kernel = chosen(Spec(Operator::conv1d_pack_fwd), "host");
  try {
    self_check(wrong, kernel.first, kernel.second);
    FAIL() << "a convolution without its activation passed";
  } catch (const CheckFailed& error) {
    const std::string message = error.what();
    EXPECT_TRUE(message.starts_with("conv1d_pack_fwd bf16 out: relative error ")) << message;
    EXPECT_NE(message.find(" against a bound of 4.0e-03"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace packjit::checking
