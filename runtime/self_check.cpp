#include "runtime/self_check.hpp"

#include <fmt/format.h>

#include <chrono>
#include <utility>

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
class DeviceWithKernel final : public Device {
 public:
  DeviceWithKernel(CudaSession& session, CUstream stream, const Spec& spec, const Config& config,
                   std::shared_ptr<const Module> module)
      : inner_(session, stream), spec_(spec), config_(config), module_(std::move(module)) {}

  [[nodiscard]] const DeviceInfo& info() const override { return inner_.info(); }
  [[nodiscard]] void* allocate(std::size_t bytes) override { return inner_.allocate(bytes); }
  void release(void* memory) noexcept override { inner_.release(memory); }
  void write(void* to_device, const void* from, std::size_t bytes) override { inner_.write(to_device, from, bytes); }
  void read(void* to, const void* from_device, std::size_t bytes) override { inner_.read(to, from_device, bytes); }
  void copy(void* to, const void* from, std::size_t bytes) override { inner_.copy(to, from, bytes); }
  void fill(void* on_device, unsigned char value, std::size_t bytes) override { inner_.fill(on_device, value, bytes); }
  void check_guards() override { inner_.check_guards(); }
  [[nodiscard]] std::shared_ptr<const Module> load(const Spec& spec, const Config& config) override {
    return spec == spec_ && config == config_ ? module_ : inner_.load(spec, config);
  }
  [[nodiscard]] std::shared_ptr<const Module> load_text(const std::string& text) override {
    return inner_.load_text(text);
  }
  void resolve(const Module& module, std::span<const KernelLaunch> launches) override {
    inner_.resolve(module, launches);
  }
  void launch(const Module& module, const KernelLaunch& launch, std::span<const std::byte> argument) override {
    launched_ = launched_ || &module == module_.get();
    inner_.launch(module, launch, argument);
  }
  void synchronize() override { inner_.synchronize(); }

  /// Whether the kernel in question ran at all.
  [[nodiscard]] bool launched() const { return launched_; }

 private:
  StreamDevice inner_;
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
    DeviceWithKernel device(session, stream.get(), spec, config, module);
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
