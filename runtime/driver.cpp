#include "runtime/driver.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <memory>
#include <mutex>
#include <stdexcept>

#include "runtime/errors.hpp"

namespace packjit {
namespace {

std::unique_ptr<const Driver> open_driver() {
  auto driver = std::make_unique<Driver>();
  driver->file = DynamicLibrary::open("libcuda.so.1");
  if (!driver->file.is_open()) {
    throw EnvironmentError(fmt::format(
        "no GPU: libcuda.so.1 not found ({}). It comes with the NVIDIA driver, not with the CUDA toolkit: install the "
        "driver, or use host execution (--device host, PACKJIT_HOST)",
        driver->file.error()));
  }
  const char* missing = nullptr;
#define PACKJIT_BIND(member, declaration, symbol) \
  if (!driver->file.load(driver->member, symbol)) missing = symbol;
  PACKJIT_DRIVER_FUNCTIONS(PACKJIT_BIND)
#undef PACKJIT_BIND
#define PACKJIT_BIND_OPTIONAL(member, declaration, symbol) driver->file.load(driver->member, symbol);
  PACKJIT_OPTIONAL_DRIVER_FUNCTIONS(PACKJIT_BIND_OPTIONAL)
#undef PACKJIT_BIND_OPTIONAL
  if (missing != nullptr) {
    throw EnvironmentError(
        fmt::format("the NVIDIA driver at {} is too old or only a stub: it lacks {}; install a driver "
                    "for CUDA 12 or newer",
                    driver->file.path(), missing));
  }
  const CUresult status = driver->init(0);
  if (status == CUDA_ERROR_NO_DEVICE) {
    throw EnvironmentError(
        fmt::format("no GPU: the NVIDIA driver at {} finds none; check `nvidia-smi` and CUDA_VISIBLE_DEVICES, or use "
                    "host execution (--device host, PACKJIT_HOST)",
                    driver->file.path()));
  }
  if (status != CUDA_SUCCESS) {
    throw EnvironmentError(fmt::format("the NVIDIA driver at {} does not start: {}; check that `nvidia-smi` works",
                                       driver->file.path(), driver->describe(status)));
  }
  int number = 0;
  driver->check(driver->driver_version(&number), "read the driver's version");
  driver->version = {number / 1000, number % 1000 / 10};
  return driver;
}

}  // namespace

const Driver& Driver::get() {
  static std::mutex mutex;
  // Never destroyed: at exit the driver may be gone before our own static objects.
  static const Driver* opened = nullptr;
  static pid_t owner = 0;
  const std::lock_guard lock(mutex);
  if (opened == nullptr) {
    opened = open_driver().release();
    owner = getpid();
  }
  if (owner != getpid()) {
    throw EnvironmentError(
        "this process was forked from one that had already used the GPU, which the CUDA driver does "
        "not support: fork before the first GPU call, or start a new program");
  }
  return *opened;
}

std::string Driver::describe(CUresult result) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (error_name(result, &name) != CUDA_SUCCESS || name == nullptr) return fmt::format("CUDA error {}", int{result});
  if (error_string(result, &text) != CUDA_SUCCESS || text == nullptr) return name;
  return fmt::format("{} ({})", name, text);
}

void Driver::check(CUresult result, const char* action) const {
  if (result != CUDA_SUCCESS) throw DriverError(fmt::format("could not {}: {}", action, describe(result)));
}

}  // namespace packjit
