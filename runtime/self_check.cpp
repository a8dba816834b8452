#include "runtime/self_check.hpp"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "runtime/device_wrapper.hpp"
#include "runtime/digest.hpp"
#include "runtime/errors.hpp"
#include "runtime/log.hpp"
#include "runtime/stream_device.hpp"

namespace packjit {
namespace {

/// A stream that no work of the application waits for, and that waits for none.
class PrivateStream {
 public:
  explicit PrivateStream(const Driver& driver) : driver_(driver) {
    driver_.check(driver_.stream_create(&stream_, CU_STREAM_NON_BLOCKING), "create a stream");
  }
  PrivateStream(const PrivateStream&) = delete;
  PrivateStream& operator=(const PrivateStream&) = delete;
  ~PrivateStream() { driver_.stream_destroy(stream_); }
  [[nodiscard]] CUstream get() const { return stream_; }

 private:
  const Driver& driver_;
  CUstream stream_ = nullptr;
};

/// A device that has one kernel loaded already: the session does not give it out before it has passed.
class DeviceWithKernel final : public DeviceWrapper {
 public:
  DeviceWithKernel(Device& inner, const Spec& spec, const Config& config, std::shared_ptr<const Module> module)
      : DeviceWrapper(inner), spec_(spec), config_(config), module_(std::move(module)) {}

  [[nodiscard]] std::shared_ptr<const Module> load(const Spec& spec, const Config& config) override {
    return spec == spec_ && config == config_ ? module_ : DeviceWrapper::load(spec, config);
  }
  void launch(const Module& module, const KernelLaunch& launch, std::span<const std::byte> argument) override {
    launched_ = launched_ || &module == module_.get();
    DeviceWrapper::launch(module, launch, argument);
  }

  /// Whether the kernel in question ran at all.
  [[nodiscard]] bool launched() const { return launched_; }

 private:
  const Spec& spec_;
  const Config& config_;
  std::shared_ptr<const Module> module_;
  bool launched_ = false;
};

}  // namespace

void check_kernel(const SelfCheck& check, CudaSession& session, const Spec& spec, const Config& config,
                  const std::shared_ptr<const ContextModule>& module, const std::string& source_key,
                  const CompileResult& images) {
  if (!check.run) return;
  const Driver& driver = session.driver();
  const DeviceInfo& gpu = session.info();
  const std::string driver_version = fmt::format("{}.{}", driver.version.major, driver.version.minor);
  const CheckRecord record{source_key, digest_hex(digest_bytes(images.cubin) + digest_bytes(images.ptx)), gpu.arch,
                           driver_version};
  if (check.has_passed && check.has_passed(record)) return;

  const auto start = std::chrono::steady_clock::now();
  const std::string subject = fmt::format("the self-check of kernel {} on {} ({}), driver for CUDA {}, NVRTC {},",
                                          source_key, gpu.name, gpu.arch, driver_version, images.nvrtc_version);
  constexpr const char* kWayOut = "PACKJIT_SELF_CHECK=off uses kernels without a check";
  try {
    const PrivateStream stream(driver);
    StreamDevice stream_device(session, stream.get());
    DeviceWithKernel device(stream_device, spec, config, module);
    check.run(device, spec, config);
    if (!device.launched()) throw std::logic_error("it did not run the kernel");
  } catch (const CheckFailed& error) {
    throw CheckFailed(
        fmt::format("{} failed, so it is not used: {}. Try another driver or NVRTC, and report this message; {}",
                    subject, error.what(), kWayOut));
  } catch (const OutOfMemory& error) {
    throw OutOfMemory(
        fmt::format("{} did not find the little memory it needs: {}; {}", subject, error.what(), kWayOut));
  } catch (const DriverError& error) {
    throw DriverError(fmt::format("{} broke off, so it is not used: {}; {}", subject, error.what(), kWayOut));
  } catch (const std::invalid_argument& error) {
    throw std::logic_error(fmt::format("{} could not be made: {}; {}", subject, error.what(), kWayOut));
  } catch (const std::logic_error& error) {
    throw std::logic_error(fmt::format("{} could not be made: {}; {}", subject, error.what(), kWayOut));
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  write_log({LogLevel::event, fmt::format("{} passed in {:.3f} s", subject, seconds), {}});
  if (check.remember) check.remember(record);
}

}  // namespace packjit
