#include "runtime/log.hpp"

#include <cstdio>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>

namespace packjit {
namespace {

// Never destroyed, so that threads may log while the process ends.
struct Receiver {
  std::mutex mutex;
  std::shared_ptr<const LogCallback> callback;
};
Receiver& receiver() {
  static auto* const kReceiver = new Receiver;
  return *kReceiver;
}

void warn_on_stderr(const LogRecord& record) {
  if (record.level != LogLevel::warning) return;
  const std::string line = "packjit: warning: " + record.message + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace

std::string_view name_of(HitKind how) {
  constexpr std::string_view kNames[] = {"memory", "disk", "imported", "compiled"};
  return kNames[static_cast<std::size_t>(how)];
}

void set_log_callback(LogCallback callback) {
  std::shared_ptr<const LogCallback> fresh;
  if (callback) fresh = std::make_shared<const LogCallback>(std::move(callback));
  const std::lock_guard lock(receiver().mutex);
  receiver().callback.swap(fresh);
}

void write_log(const LogRecord& record) noexcept {
  try {
    std::shared_ptr<const LogCallback> callback;
    {
      const std::lock_guard lock(receiver().mutex);
      callback = receiver().callback;
    }
    if (callback != nullptr) {
      (*callback)(record);
    } else {
      warn_on_stderr(record);
    }
  } catch (const std::exception&) {
    return;
  }
}

}  // namespace packjit
