#include "cli/host_step.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "api/handles.hpp"
#include "api/tensors.hpp"
#include "runtime/cuda_launch.hpp"
#include "runtime/errors.hpp"
#include "runtime/kernel_argument.hpp"

namespace packjit {
namespace {

constexpr std::size_t kMemoryBytes = std::size_t{2} << 20U;  // more than all tensors of kShape
constexpr packjit_shape kShape{sizeof(packjit_shape), 1, 64, 64, 1, 1, 64, PACKJIT_TOKEN_MAJOR, 0};

void succeed(packjit_status status) {
  if (status == PACKJIT_OK) return;
  const std::string message = packjit_last_error();
  if (status == PACKJIT_ENVIRONMENT) throw EnvironmentError(message);
  if (status == PACKJIT_CHECK_FAILED) throw CheckFailed(message);
  throw std::runtime_error(fmt::format("{}: {}", packjit_status_name(status), message));
}

packjit_operator* make_operator(packjit_device* device, std::int32_t kind) {
  packjit_operator_options options{};
  options.struct_size = sizeof(options);
  options.op = kind;
  packjit_operator* made = nullptr;
  succeed(packjit_operator_create(device, &options, &made));
  return made;
}

std::size_t argument_bytes(Operator op) { return is_scan(op) ? sizeof(SsmArguments) : sizeof(ConvArguments); }
std::string empty_name(Operator op) { return is_scan(op) ? "empty_scan" : "empty_convolution"; }

thread_local const Driver* counted = nullptr;
thread_local int launches = 0;

CUresult count_launch(const CUlaunchConfig* config, CUfunction function, void** parameters, void** extra) {
  ++launches;
  return counted->launch_kernel(config, function, parameters, extra);
}

double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

/// The struct of one operator's tensors and what it points to.
struct HostStep::Call {
  alignas(std::max_align_t) std::array<std::byte, sizeof(packjit_ssm_backward_tensors)> bytes{};
  std::vector<std::unique_ptr<packjit_tensor>> tensors;
};

HostStep::HostStep(const Driver& driver) : driver_(driver) {
  driver_.check(driver_.stream_create(&stream_, CU_STREAM_NON_BLOCKING), "create a stream");
  driver_.check(driver_.memory_allocate(&memory_, kMemoryBytes), "take memory");
  driver_.check(driver_.memory_set(memory_, 0, kMemoryBytes, stream_), "fill memory");
  for (const Operator op : kOperators) {
    auto call = std::make_unique<Call>();
    const std::size_t size = op == Operator::conv1d_pack_fwd   ? sizeof(packjit_conv1d_forward_tensors)
                             : op == Operator::conv1d_pack_bwd ? sizeof(packjit_conv1d_backward_tensors)
                             : op == Operator::ssm_pack_fwd    ? sizeof(packjit_ssm_forward_tensors)
                                                               : sizeof(packjit_ssm_backward_tensors);
    std::memcpy(call->bytes.data(), &size, sizeof(size));
    calls_.emplace(op, std::move(call));
  }
}

HostStep::~HostStep() {
  driver_.stream_synchronize(stream_);
  packjit_map_release(map_);
  packjit_operator_release(conv_);
  packjit_operator_release(scan_);
  driver_.memory_free(memory_);
  driver_.stream_destroy(stream_);
}

void HostStep::use(packjit_device* device) {
  wait();
  packjit_map_release(std::exchange(map_, nullptr));
  packjit_operator_release(std::exchange(conv_, nullptr));
  packjit_operator_release(std::exchange(scan_, nullptr));
  conv_ = make_operator(device, PACKJIT_CONV1D_PACK);
  scan_ = make_operator(device, PACKJIT_SSM_PACK);
  const packjit_map_options options{sizeof(options), PACKJIT_ROWS,         PACKJIT_POSITIONS, kShape.batch,
                                    kShape.seqlen,   kShape.max_sequences, kShape.max_seqlen};
  succeed(packjit_map_from_host(device, stream_, &options, nullptr, &map_));
  if (used_ > 0) return;
  for (const Operator op : kOperators) {
    const Spec spec(op);
    Call& call = *calls_.at(op);
    const std::int32_t direction = is_backward(op) ? PACKJIT_BACKWARD : PACKJIT_FORWARD;
    std::size_t index = 0;
    for (const TensorRule& rule : tensor_rules(op)) {
      const std::size_t offset = api::tensor_offsets(op)[index++];
      if (!rule.field.empty() && spec.values[rule.field] == 0) continue;
      auto tensor = std::make_unique<packjit_tensor>();
      tensor->struct_size = sizeof(packjit_tensor);
      succeed(packjit_operator_describe(is_scan(op) ? scan_ : conv_, direction, &kShape, std::string(rule.name).c_str(),
                                        tensor.get()));
      constexpr std::size_t kWidest = 4, kApart = 256;  // bytes of an element, and from tensor to tensor
      std::size_t bytes = kWidest;
      for (std::int32_t i = 0; i < tensor->rank; ++i) bytes *= static_cast<std::size_t>(tensor->shape[i]);
      tensor->data = to_pointer(memory_ + used_);
      used_ += (bytes + kApart - 1) / kApart * kApart;
      if (used_ > kMemoryBytes) throw std::logic_error("the tensors of a step need more memory");
      const void* const place = tensor.get();
      std::memcpy(call.bytes.data() + offset, static_cast<const void*>(&place), sizeof(void*));
      call.tensors.push_back(std::move(tensor));
    }
  }
  wait();
}

void HostStep::run(Operator op) {
  const void* const tensors = calls_.at(op)->bytes.data();
  switch (op) {
    case Operator::conv1d_pack_fwd:
      return succeed(packjit_conv1d_forward(conv_, stream_, map_,
                                            static_cast<const packjit_conv1d_forward_tensors*>(tensors), nullptr));
    case Operator::conv1d_pack_bwd:
      return succeed(packjit_conv1d_backward(conv_, stream_, map_,
                                             static_cast<const packjit_conv1d_backward_tensors*>(tensors), nullptr));
    case Operator::ssm_pack_fwd:
      return succeed(
          packjit_ssm_forward(scan_, stream_, map_, static_cast<const packjit_ssm_forward_tensors*>(tensors), nullptr));
    case Operator::ssm_pack_bwd:
      return succeed(packjit_ssm_backward(scan_, stream_, map_,
                                          static_cast<const packjit_ssm_backward_tensors*>(tensors), nullptr));
    default:
      throw std::logic_error("a step has the four operators only");
  }
}

void HostStep::wait() const { driver_.check(driver_.stream_synchronize(stream_), "wait for a stream"); }

packjit_device* open_gpu() {
  const packjit_device_options options{sizeof(options), PACKJIT_GPU, 0};
  packjit_device* device = nullptr;
  succeed(packjit_device_open(&options, &device));
  return device;
}

packjit_device* open_gpu_over(const Driver& driver) { return new packjit_device(api::cuda_backend(driver, 0)); }

std::string empty_kernels() {
  std::string text;
  for (const Operator op : {Operator::conv1d_pack_fwd, Operator::ssm_pack_fwd}) {
    text += fmt::format(
        "struct alignas(8) Argument_{0} {{ char bytes[{1}]; }};\n"
        "extern \"C\" __global__ void {0}(const __grid_constant__ Argument_{0} argument) {{}}\n",
        empty_name(op), argument_bytes(op));
  }
  return text;
}

std::vector<CallCost> call_costs(const Driver& driver, CUmodule empty, const OpenDevice& open, std::int64_t calls) {
  using Handle = std::unique_ptr<packjit_device, decltype(&packjit_device_release)>;
  Driver counting = driver;
  counting.launch_kernel = count_launch;
  counted = &driver;
  const Handle counting_device(open(counting), packjit_device_release), device(open(driver), packjit_device_release);
  HostStep step(driver);
  std::vector<CallCost> costs;
  step.use(counting_device.get());
  for (const Operator op : kOperators) {
    step.run(op);  // loads what is not a part of a warm call
    launches = 0;
    step.run(op);
    CallCost cost{op};
    cost.kernels = launches;
    costs.push_back(cost);
  }
  step.use(device.get());
  const std::vector<std::byte> argument(std::max(sizeof(SsmArguments), sizeof(ConvArguments)));
  for (CallCost& cost : costs) {
    if (cost.kernels < 1) throw std::logic_error("a call launched nothing");
    CUfunction function = nullptr;
    driver.check(driver.module_function(&function, empty, empty_name(cost.op).c_str()), "look up a kernel");
    const KernelLaunch launch{empty_name(cost.op), 1, 1, 32};
    const auto bare = [&] {
      const CUresult status =
          launch_kernel(driver, function, step.stream(), launch, std::span(argument).first(argument_bytes(cost.op)));
      driver.check(status, "launch an empty kernel");
    };
    // The queue takes about a thousand launches before it makes the host wait.
    constexpr std::int64_t kMostQueued = 500;
    const std::int64_t group = std::max<std::int64_t>(1, kMostQueued / cost.kernels);
    const auto time = [&](std::int64_t count, const auto& work) {
      step.wait();
      const auto start = std::chrono::steady_clock::now();
      for (std::int64_t i = 0; i < count; ++i) work();
      const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - start;
      return taken.count() / static_cast<double>(count);
    };
    for (int i = 0; i < 10; ++i) step.run(cost.op), bare();
    std::vector<double> call_ns, launch_ns;
    for (cost.calls = 0; cost.calls < calls; cost.calls += group) {
      call_ns.push_back(time(group, [&] { step.run(cost.op); }));
      launch_ns.push_back(time(group * cost.kernels, bare));
    }
    step.wait();
    cost.call_ns = median(call_ns);
    cost.launch_ns = median(launch_ns);
  }
  return costs;
}

}  // namespace packjit
