#include <utility>

#include "api/backend.hpp"
#include "api/dlpack.hpp"
#include "runtime/cuda_session.hpp"
#include "runtime/stream_device.hpp"

namespace packjit::api {
namespace {

class CudaLane final : public Lane {
 public:
  CudaLane(CudaSession& session, void* stream, void* handed)
      : session_(session),
        stream_(static_cast<CUstream>(stream)),
        entered_(session, static_cast<CUcontext>(handed)),
        device_(session, stream, entered_) {}

  Device& device() override { return device_; }
  const DeviceInfo& info() override { return session_.info(); }
  std::uint64_t context() const override { return entered_.context().id; }
  bool is_captured() const override { return session_.is_captured(stream_); }
  void* workspace(std::size_t bytes) override { return session_.workspace(entered_, stream_, bytes); }
  void read(void* to, const void* from_device, std::size_t bytes) override { device_.read(to, from_device, bytes); }

 private:
  CudaSession& session_;
  CUstream stream_;
  CudaSession::Entered entered_;
  StreamDevice device_;
};

class CudaBackend final : public Backend {
 public:
  CudaBackend(const Driver& driver, std::optional<int> ordinal, CompileForGpu compile, SelfCheck check)
      : ordinal_(ordinal), session_(driver, ordinal, std::move(compile), std::move(check)) {}

  bool holds(std::int32_t device_type, std::int32_t device_id) const override {
    return device_type == dlpack::kCuda && ordinal_.value_or(device_id) == device_id;
  }
  std::unique_ptr<Lane> enter(void* stream, void* handed) override {
    return std::make_unique<CudaLane>(session_, stream, handed);
  }
  void* to_hand_on() override { return session_.to_hand_on(); }
  std::unique_ptr<Device> keeper(void* stream) override { return std::make_unique<StreamDevice>(session_, stream); }

 private:
  std::optional<int> ordinal_;
  CudaSession session_;
};

}  // namespace

std::unique_ptr<Backend> cuda_backend(const Driver& driver, std::optional<int> ordinal, CompileForGpu compile,
                                      SelfCheck check) {
  return std::make_unique<CudaBackend>(driver, ordinal, std::move(compile), std::move(check));
}

}  // namespace packjit::api
