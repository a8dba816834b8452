#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/compile_for_gpu.hpp"
#include "runtime/device.hpp"

namespace packjit {

/// What the machine offers to run kernels on. Never throws: `problem` says what is missing and what to do.
struct DriverSurvey {
  bool found = false;   ///< a driver that works
  std::string path;     ///< of libcuda; empty when not found
  std::string version;  ///< the CUDA version that it supports, "13.0"
  std::string problem;  ///< empty when there is a GPU
  std::vector<DeviceInfo> gpus;
};
[[nodiscard]] DriverSurvey survey_driver();

/// A loaded kernel as the driver sees it. Sizes in bytes.
struct LoadedKernel {
  int registers = 0;              ///< per thread
  std::int64_t local_bytes = 0;   ///< per thread
  std::int64_t shared_bytes = 0;  ///< static, per block
  int blocks_per_multiprocessor = 0;
};

/// Launches that CudaDevice::capture() recorded. Keeps the context alive, but neither the modules nor the memory that
/// the launches use.
class CudaGraph;

/// A GPU through the CUDA driver: its primary context, one stream, and the modules loaded by this object.
///
/// Modules are kept by generated key; what they are loaded from comes from CompileCache::shared(). The contract of
/// Device holds; in addition modules must not outlive the device. No driver call happens before open().
class CudaDevice final : public Device {
 public:
  /// Throws EnvironmentError as open_cuda_device() does. `compile` makes the images of what load() generates.
  [[nodiscard]] static std::unique_ptr<CudaDevice> open(int ordinal = 0, CompileForGpu compile = compile_for_gpu);
  ~CudaDevice() override;

  [[nodiscard]] const DeviceInfo& info() const override;
  [[nodiscard]] void* allocate(std::size_t bytes) override;
  void release(void* memory) noexcept override;
  void write(void* to_device, const void* from, std::size_t bytes) override;
  void read(void* to, const void* from_device, std::size_t bytes) override;
  void copy(void* to_device, const void* from_device, std::size_t bytes) override;
  void fill(void* on_device, unsigned char value, std::size_t bytes) override;
  void check_guards() override;
  [[nodiscard]] std::shared_ptr<const Module> load(const Spec& spec, const Config& config) override;
  [[nodiscard]] std::shared_ptr<const Module> load_text(const std::string& text) override;
  void launch(const Module& module, const KernelLaunch& launch, std::span<const std::byte> argument) override;
  void synchronize() override;

  /// Records what `work` launches or fills on this device instead of running it. `work` has to have run once before: it
  /// can neither take memory, copy nor wait, and no kernel can be used for the first time; each throws std::logic_error
  /// that says so, and nothing is recorded. Memory given back meanwhile is kept until the device closes.
  [[nodiscard]] std::shared_ptr<const CudaGraph> capture(const std::function<void()>& work);
  /// Runs what was recorded, on the memory that it was recorded with. Does not wait.
  void launch(const CudaGraph& graph);

  /// Milliseconds between two events around what `work` launches on this device. Waits for it.
  [[nodiscard]] float elapsed_ms(const std::function<void()>& work);
  /// The resources of one launch, as the driver reports them.
  [[nodiscard]] LoadedKernel inspect(const Module& module, const KernelLaunch& launch);

 private:
  struct State;
  explicit CudaDevice(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace packjit
