#pragma once

#include <string>

namespace packjit {

/// A shared library opened at run time. Opening is an explicit act; nothing happens at load.
///
/// The library stays open for the life of the process: CUDA's libraries start threads and register exit handlers, so
/// unloading them is never safe. Copies refer to the same library. Concurrent use is safe.
class DynamicLibrary {
 public:
  /// Not opened; `is_open()` is false.
  DynamicLibrary() = default;

  /// Opens `path`, or a bare name ("libcuda.so.1") by the system's own search. Never throws: on failure `is_open()` is
  /// false and `error()` is the system's message.
  [[nodiscard]] static DynamicLibrary open(const std::string& path);

  [[nodiscard]] bool is_open() const { return handle_ != nullptr; }
  [[nodiscard]] const std::string& error() const { return error_; }
  /// The file that was opened, as the system resolved it; the name given when that is unknown.
  [[nodiscard]] const std::string& path() const { return path_; }

  /// The linker's build id in hexadecimal digits: the same for equal files, wherever they lie. Empty where it has none.
  [[nodiscard]] std::string build_id() const;

  /// The address of a symbol, or null.
  [[nodiscard]] void* symbol(const char* name) const;
  /// Sets `function` to the symbol; false, and null, when the library lacks it.
  template <typename Function>
  bool load(Function*& function, const char* name) const {
    function = reinterpret_cast<Function*>(symbol(name));
    return function != nullptr;
  }

 private:
  void* handle_ = nullptr;
  std::string path_;
  std::string error_;
};

}  // namespace packjit
