#include "runtime/host/host_device.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <thread>
#include <vector>

#include "runtime/host/host_compiler.hpp"

namespace packjit::host {
namespace {

constexpr std::uint32_t kMaxBlock = 1024;
constexpr std::uint32_t kMaxGridX = 2147483647;
constexpr std::uint32_t kMaxGridY = 65535;
constexpr std::uint32_t kMaxSharedBytes = 227 * 1024;
/// As for a kernel parameter in the constant memory of a GPU, and enough for any member.
struct alignas(64) ArgumentLine {
  std::byte bytes[64];
};

void require_range(const KernelLaunch& launch, const char* what, std::uint32_t value, std::uint32_t low,
                   std::uint32_t high) {
  if (value >= low && value <= high) return;
  throw std::invalid_argument(
      fmt::format("launching kernel {} on the host: {} is {}, but {} to {} are possible, as on a GPU", launch.entry,
                  what, value, low, high));
}

std::int64_t physical_memory() {
  const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? std::int64_t{pages} * page : 0;
}

}  // namespace

HostDevice::HostDevice(HostOrder order) : scheduler_(order) {
  info_.kind = "host";
  info_.name = "host execution with " + find_host_compiler();
  info_.arch = "host";
  info_.multiprocessors = 1;
  info_.shared_bytes_per_block = kMaxSharedBytes;
  info_.memory_bytes = physical_memory();
}

void HostDevice::write(void* to_device, const void* from, std::size_t bytes) {
  memory_.require(to_device, bytes, "writing");
  if (bytes != 0) std::memcpy(to_device, from, bytes);
}

void HostDevice::read(void* to, const void* from_device, std::size_t bytes) {
  memory_.require(from_device, bytes, "reading");
  if (bytes != 0) std::memcpy(to, from_device, bytes);
}

void HostDevice::copy(void* to_device, const void* from_device, std::size_t bytes) {
  memory_.require(from_device, bytes, "copying");
  memory_.require(to_device, bytes, "copying");
  if (bytes != 0) std::memcpy(to_device, from_device, bytes);
}

void HostDevice::fill(void* on_device, unsigned char value, std::size_t bytes) {
  memory_.require(on_device, bytes, "filling");
  if (bytes != 0) std::memset(on_device, value, bytes);
}

std::shared_ptr<const Module> HostDevice::load(const Spec& spec, const Config& config) {
  std::shared_ptr<const Module>& module = loaded_[source_key(spec, config)];
  if (module) return module;
  try {
    module = shared_host_module(generate(spec, config, Target::host).text);
  } catch (const HostCompileError& error) {
    throw cannot_compile_generated(error);
  }
  return module;
}

std::shared_ptr<const Module> HostDevice::load_text(const std::string& text) { return shared_host_module(text); }

void HostDevice::launch(const Module& module, const KernelLaunch& launch, std::span<const std::byte> argument) {
  const auto* host_module = dynamic_cast<const HostModule*>(&module);
  if (host_module == nullptr) {
    throw std::invalid_argument(
        fmt::format("launching kernel {} on the host: its module was loaded by another kind of device", launch.entry));
  }
  require_range(launch, "block", launch.block, 1, kMaxBlock);
  require_range(launch, "grid_x", launch.grid_x, 1, kMaxGridX);
  require_range(launch, "grid_y", launch.grid_y, 1, kMaxGridY);
  require_range(launch, "shared_bytes", launch.shared_bytes, 0, kMaxSharedBytes);
  std::vector<ArgumentLine> copy(argument.size() / sizeof(ArgumentLine) + 1);
  if (!argument.empty()) std::memcpy(copy.data(), argument.data(), argument.size());
  scheduler_.run(launch, host_module->entry(launch.entry), host_module->current_thread(), copy.data());
  memory_.look("kernel " + launch.entry);
}

void HostDevice::prepare(std::span<const std::pair<Spec, Config>> pairs) {
  std::vector<std::string> texts;
  for (const auto& [spec, config] : pairs) texts.push_back(generate(spec, config, Target::host).text);
  try {
    compile_texts(texts);
  } catch (const HostCompileError& error) {
    throw cannot_compile_generated(error);
  }
}

void compile_texts(std::span<const std::string> texts) {
  std::atomic<std::size_t> next = 0;
  std::vector<std::exception_ptr> failures(texts.size());
  const auto work = [&] {
    for (std::size_t i = next++; i < texts.size(); i = next++) {
      try {
        static_cast<void>(shared_host_module(texts[i]));
      } catch (...) {
        failures[i] = std::current_exception();
      }
    }
  };
  const std::size_t count = std::min<std::size_t>(texts.size(), std::max(1u, std::thread::hardware_concurrency()));
  std::vector<std::jthread> others;
  for (std::size_t i = 1; i < count; ++i) others.emplace_back(work);
  work();
  others.clear();  // joins
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace packjit::host

namespace packjit {

std::unique_ptr<Device> open_host_device(HostOrder order) { return std::make_unique<host::HostDevice>(order); }

}  // namespace packjit
