#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace packjit {

/// How a compiled kernel came: from this process, from the disk cache, from the disk cache where a bundle was imported,
/// or from the compiler.
enum class HitKind { memory, disk, imported, compiled };
[[nodiscard]] std::string_view name_of(HitKind how);

/// One kernel that was asked for.
struct KernelEvent {
  std::string key;  ///< the full key, several lines
  HitKind how = HitKind::compiled;
  double seconds = 0;  ///< from the question to the answer
};

enum class LogLevel { event, warning };

struct LogRecord {
  LogLevel level = LogLevel::event;
  std::string message;               ///< one line, without a newline at the end
  std::optional<KernelEvent> event;  ///< of a kernel that was asked for; other records have none
};

/// Receives records, from several threads at once. What it throws is lost.
using LogCallback = std::function<void(const LogRecord&)>;

/// Replaces, for the process, what receives records; an empty one puts back the default, which writes warnings to
/// standard error and drops events. Safe to call from any thread; a record on its way may still reach the old one.
void set_log_callback(LogCallback callback);

/// Hands a record to the process's callback. Never throws.
void write_log(const LogRecord& record) noexcept;

}  // namespace packjit
