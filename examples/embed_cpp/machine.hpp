#pragma once
// What your program has already: memory, streams and graphs of its device. Here through libcuda's own functions, opened
// at run time, so that the example builds and runs on machines without CUDA; there, memory is the host's and all else
// nothing.

#include <cstddef>
#include <functional>
#include <vector>

class Machine {
 public:
  /// With `gpu`, the primary context of GPU 0 is current on the calling thread from here on. Ends the program where
  /// CUDA refuses something, as all calls do.
  explicit Machine(bool gpu);

  [[nodiscard]] void* make_stream() const;  ///< null on the host
  /// Never given back: the process is short.
  [[nodiscard]] void* allocate(std::size_t bytes) const;
  void copy_in(void* stream, void* to, const void* from, std::size_t bytes) const;   ///< waits
  void copy_out(void* stream, void* to, const void* from, std::size_t bytes) const;  ///< waits
  /// A CUDA graph of what `work` launches on the stream, as a function that runs it; on the host `work` itself.
  [[nodiscard]] std::function<void()> record(void* stream, const std::function<void()>& work) const;
  void make_current() const;  ///< on another thread

 private:
  void* context_ = nullptr;
};

/// Values of one type in the machine's memory.
template <typename T>
class Values {
 public:
  Values(const Machine& machine, std::size_t count)
      : machine_(machine), count_(count), data_(machine.allocate(count * sizeof(T))) {}
  Values(const Machine& machine, void* stream, const std::vector<T>& values) : Values(machine, values.size()) {
    set(stream, values);
  }
  void set(void* stream, const std::vector<T>& values) {
    machine_.copy_in(stream, data_, values.data(), count_ * sizeof(T));
  }
  [[nodiscard]] std::vector<T> get(void* stream) const {
    std::vector<T> values(count_);
    machine_.copy_out(stream, values.data(), data_, count_ * sizeof(T));
    return values;
  }
  [[nodiscard]] void* data() const { return data_; }

 private:
  const Machine& machine_;
  std::size_t count_;
  void* data_;
};
