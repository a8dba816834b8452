#pragma once

#include "runtime/device.hpp"

namespace packjit {

/// Another device with something changed: what is not overridden goes to it.
class DeviceWrapper : public Device {
 public:
  explicit DeviceWrapper(Device& inner) : inner_(inner) {}

  [[nodiscard]] const DeviceInfo& info() const override { return inner_.info(); }
  [[nodiscard]] void* allocate(std::size_t bytes) override { return inner_.allocate(bytes); }
  void release(void* memory) noexcept override { inner_.release(memory); }
  void write(void* to_device, const void* from, std::size_t bytes) override { inner_.write(to_device, from, bytes); }
  void read(void* to, const void* from_device, std::size_t bytes) override { inner_.read(to, from_device, bytes); }
  void copy(void* to, const void* from, std::size_t bytes) override { inner_.copy(to, from, bytes); }
  void fill(void* on_device, unsigned char value, std::size_t bytes) override { inner_.fill(on_device, value, bytes); }
  void check_guards() override { inner_.check_guards(); }
  [[nodiscard]] std::shared_ptr<const Module> load(const Spec& spec, const Config& config) override {
    return inner_.load(spec, config);
  }
  [[nodiscard]] std::shared_ptr<const Module> load_text(const std::string& text) override {
    return inner_.load_text(text);
  }
  void resolve(const Module& module, std::span<const KernelLaunch> launches) override {
    inner_.resolve(module, launches);
  }
  void launch(const Module& module, const KernelLaunch& launch, std::span<const std::byte> argument) override {
    inner_.launch(module, launch, argument);
  }
  void synchronize() override { inner_.synchronize(); }

 protected:
  [[nodiscard]] Device& inner() { return inner_; }

 private:
  Device& inner_;
};

}  // namespace packjit
