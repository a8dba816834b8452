#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "api/backend.hpp"
#include "api/dlpack.hpp"

namespace packjit::api {
namespace {

/// A host device and its scratch memory. Calls of several threads are in no order, so each has a seat of its own.
struct Seat {
  std::unique_ptr<Device> device = open_host_device();
  Buffer workspace;
};

class HostBackend final : public Backend {
 public:
  HostBackend() { free_.push_back(std::make_unique<Seat>()); }  // throws where there is no compiler

  std::unique_ptr<Lane> enter(void* /*stream*/, void* /*handed*/) override;
  void* to_hand_on() override { return nullptr; }
  bool holds(std::int32_t device_type, std::int32_t /*device_id*/) const override {
    return device_type == dlpack::kCpu;
  }
  std::unique_ptr<Device> keeper(void* /*stream*/) override { return open_host_device(); }

  std::unique_ptr<Seat> take() {
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        std::unique_ptr<Seat> seat = std::move(free_.back());
        free_.pop_back();
        return seat;
      }
    }
    return std::make_unique<Seat>();
  }
  void put_back(std::unique_ptr<Seat> seat) noexcept {
    try {
      const std::lock_guard lock(mutex_);
      free_.push_back(std::move(seat));
    } catch (const std::exception&) {
      return;  // no memory: the seat goes
    }
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Seat>> free_;
};

class HostLane final : public Lane {
 public:
  explicit HostLane(HostBackend& backend) : backend_(backend), seat_(backend.take()) {}
  ~HostLane() override { backend_.put_back(std::move(seat_)); }
  HostLane(const HostLane&) = delete;
  HostLane& operator=(const HostLane&) = delete;

  Device& device() override { return *seat_->device; }
  const DeviceInfo& info() override { return seat_->device->info(); }
  std::uint64_t context() const override { return 0; }
  bool is_captured() const override { return false; }
  void* workspace(std::size_t bytes) override {
    if (seat_->workspace.size() < bytes) {
      seat_->workspace = Buffer();
      seat_->workspace = Buffer(*seat_->device, bytes);
    }
    return seat_->workspace.data();
  }
  // The seat's device reads its own memory only. Launches have ended when they return.
  void read(void* to, const void* from_device, std::size_t bytes) override { std::memcpy(to, from_device, bytes); }

 private:
  HostBackend& backend_;
  std::unique_ptr<Seat> seat_;
};

std::unique_ptr<Lane> HostBackend::enter(void* /*stream*/, void* /*handed*/) {
  return std::make_unique<HostLane>(*this);
}

}  // namespace

std::unique_ptr<Backend> host_backend() { return std::make_unique<HostBackend>(); }

}  // namespace packjit::api
