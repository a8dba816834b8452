#pragma once

#include <string>

namespace packjit {

/// While it lives, the file or empty folder of this name is removed when a signal ends the process, provided that
/// remove_temporaries_on_signals() was called. Its owner removes it in every other case. Safe to use from several
/// threads; a name that is too long, or one of very many, is not kept (it would then outlive a signal).
class TemporaryPath {
 public:
  TemporaryPath() = default;
  explicit TemporaryPath(const std::string& path);
  ~TemporaryPath();
  TemporaryPath(TemporaryPath&& other) noexcept;
  TemporaryPath& operator=(TemporaryPath&& other) noexcept;

 private:
  int slot_ = -1;
};

/// Makes SIGINT, SIGTERM and SIGHUP remove every TemporaryPath before they end the process, as they would without it.
/// A signal that is ignored stays so. For programs; a library leaves signals alone.
void remove_temporaries_on_signals();

}  // namespace packjit
