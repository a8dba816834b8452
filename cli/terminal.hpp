#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace packjit {

/// Writes to standard output; throws as throw_write_error() does where that fails (a full disk, a closed stream). Data
/// may be held back until `flush_results`.
void print_result(std::string_view text);
/// Hands everything printed to the system; throws as print_result. main.cpp calls it after every subcommand.
void flush_results();

/// A path or another value as a shell reads it: in quotes where something in it means something to the shell.
[[nodiscard]] std::string shell_word(std::string_view text);

/// A progress bar on standard error for work that takes more than a second. Nothing is written where standard error is
/// not a terminal, or before a second has passed; the line is erased at the end. One thread at a time.
class Progress {
 public:
  /// `total` steps are expected; 0 shows only the label and the time.
  Progress(std::string label, std::int64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Reports `steps` more steps done.
  void advance(std::int64_t steps = 1);
  /// Names what is being done now.
  void set_label(std::string label);

 private:
  using Clock = std::chrono::steady_clock;
  void draw();

  std::string label_;
  std::int64_t total_;
  std::int64_t done_ = 0;
  Clock::time_point start_ = Clock::now();
  Clock::time_point next_draw_;
  bool enabled_;
  bool drawn_ = false;
};

/// The line that Progress draws, at most `columns` wide: "label [=====     ]  50 % 12 s". For tests.
[[nodiscard]] std::string progress_line(std::string_view label, std::int64_t done, std::int64_t total,
                                        std::int64_t seconds, int columns);

}  // namespace packjit
