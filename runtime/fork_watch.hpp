#pragma once

namespace packjit {

/// Counts the forks that lead to this process, from the first call of watch_forks() on. Reading it is no system call,
/// unlike asking for the process's number.
void watch_forks();
[[nodiscard]] unsigned forks_seen() noexcept;

}  // namespace packjit
