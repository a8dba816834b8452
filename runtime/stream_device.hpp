#pragma once

#include <optional>

#include "runtime/cuda_session.hpp"
#include "runtime/device.hpp"

namespace packjit {

/// A stream that somebody else owns, as a Device. Internal. One thread at a time.
///
/// Memory has no guard zones. What a capture cannot hold throws NotPreparedInCapture before the stream is touched.
/// Memory is given back where the context it was taken in is current (or is the session's primary one), otherwise it
/// goes with that context. Giving it back leaves captures valid.
class StreamDevice final : public Device {
 public:
  StreamDevice(CudaSession& session, void* stream) : session_(session), stream_(static_cast<CUstream>(stream)) {}
  /// For one call, on the thread that has entered; launches need not enter again.
  StreamDevice(CudaSession& session, void* stream, const CudaSession::Entered& within)
      : session_(session), stream_(static_cast<CUstream>(stream)), within_(&within) {}

  /// What follows goes to another stream.
  void use(void* stream) { stream_ = static_cast<CUstream>(stream); }
  [[nodiscard]] bool is_captured() const;
  /// What is released from now on stays until the session ends: graphs hold it.
  void keep_memory() { keeps_memory_ = true; }

  [[nodiscard]] const DeviceInfo& info() const override;
  [[nodiscard]] void* allocate(std::size_t bytes) override;
  void release(void* memory) noexcept override;
  void write(void* to_device, const void* from, std::size_t bytes) override;
  void read(void* to, const void* from_device, std::size_t bytes) override;
  void copy(void* to_device, const void* from_device, std::size_t bytes) override;
  void fill(void* on_device, unsigned char value, std::size_t bytes) override;
  void check_guards() override {}
  [[nodiscard]] std::shared_ptr<const Module> load(const Spec& spec, const Config& config) override;
  /// Throws std::logic_error: hand-edited kernels run on a CudaDevice.
  [[nodiscard]] std::shared_ptr<const Module> load_text(const std::string& text) override;
  void resolve(const Module& module, std::span<const KernelLaunch> launches) override;
  void launch(const Module& module, const KernelLaunch& launch, std::span<const std::byte> argument) override;
  void synchronize() override;

 private:
  CudaSession& session_;
  CUstream stream_;
  const CudaSession::Entered* within_ = nullptr;
  bool keeps_memory_ = false;
  std::uint64_t memory_context_ = 0;  // id of the context that memory was taken in
};

}  // namespace packjit
