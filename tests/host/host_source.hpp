#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/device.hpp"
#include "tests/message_of.hpp"

namespace packjit::test {

/// Host source as the generator would print it: the primitives, `body` (which declares `struct Argument` and the
/// kernels) and an entry for each kernel named.
[[nodiscard]] inline std::string host_source(const std::string& body, std::initializer_list<const char*> kernels);

/// The text of templates/device/primitives_host.cuh, with its fp16 part.
[[nodiscard]] std::string host_primitives();

inline std::string host_source(const std::string& body, std::initializer_list<const char*> kernels) {
  std::string text = host_primitives() + body;
  for (const std::string kernel : kernels) {
    text += "extern \"C\" void packjit_enter_" + kernel + "() { " + kernel +
            "(*static_cast<const Argument*>(packjit_thread->argument)); }\n";
  }
  return text;
}

/// Runs a kernel whose argument is `struct Argument { T* out; int n; }` on n values that start as zero; returns them.
template <typename T>
std::vector<T> run_kernel(Device& device, const std::string& text, const KernelLaunch& launch, std::size_t n) {
  struct Argument {
    void* out;
    int n;
  };
  std::vector<T> result(n);
  void* out = device.allocate(n * sizeof(T));
  struct Release {
    Device& device;
    void* memory;
    ~Release() { device.release(memory); }
  } release{device, out};
  device.fill(out, 0, n * sizeof(T));
  const Argument argument{out, static_cast<int>(n)};
  device.launch(*device.load_text(text), launch, std::as_bytes(std::span(&argument, 1)));
  device.check_guards();
  device.read(result.data(), out, n * sizeof(T));
  return result;
}

}  // namespace packjit::test
