#include "cli/terminal.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <system_error>
#include <utility>

#include "cli/output_file.hpp"

namespace packjit {
namespace {

constexpr auto kQuietTime = std::chrono::seconds(1);
constexpr auto kRedrawInterval = std::chrono::milliseconds(100);

bool stderr_is_terminal() {
  const char* term = std::getenv("TERM");
  return isatty(STDERR_FILENO) == 1 && term != nullptr && std::string_view(term) != "dumb";
}

int terminal_columns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

[[noreturn]] void fail(int error) {
  throw_write_error(error, fmt::format("cannot write to standard output: {}; the result is incomplete",
                                       std::generic_category().message(error)));
}

}  // namespace

void print_result(std::string_view text) {
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) fail(errno);
}

void flush_results() {
  errno = 0;
  if (std::fflush(stdout) != 0) fail(errno);
  // An earlier write failed whose status the caller dropped; the reason is gone by now.
  if (std::ferror(stdout) != 0) fail(EIO);
}

std::string shell_word(std::string_view text) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789%+,-./:=@_";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string_view::npos) return std::string(text);
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? "'\\''" : std::string(1, c);
  return word + "'";
}

// Written here because Debian 12 packages no C++ library for progress bars.
std::string progress_line(std::string_view label, std::int64_t done, std::int64_t total, std::int64_t seconds,
                          int columns) {
  std::string line(label);
  if (total > 0) {
    const std::int64_t shown = std::clamp<std::int64_t>(done, 0, total);
    const double part = static_cast<double>(shown) / static_cast<double>(total);
    const std::string tail = fmt::format(" {:3d} % {} s", static_cast<int>(part * 100), seconds);
    const int room = columns - static_cast<int>(label.size() + tail.size()) - 3;
    if (room >= 5) {
      const int width = std::min(room, 40);
      const int filled = static_cast<int>(part * width);
      line += fmt::format(" [{:=<{}}{: <{}}]", "", filled, "", width - filled);
    }
    line += tail;
  } else {
    line += fmt::format(" {} s", seconds);
  }
  return line.substr(0, static_cast<std::size_t>(std::max(columns, 0)));
}

Progress::Progress(std::string label, std::int64_t total)
    : label_(std::move(label)), total_(total), next_draw_(start_ + kQuietTime), enabled_(stderr_is_terminal()) {}

Progress::~Progress() {
  if (drawn_) std::fputs("\r\033[K", stderr);
}

void Progress::advance(std::int64_t steps) {
  done_ += steps;
  draw();
}

void Progress::set_label(std::string label) {
  label_ = std::move(label);
  draw();
}

void Progress::draw() {
  if (!enabled_) return;
  const Clock::time_point now = Clock::now();
  if (now < next_draw_) return;
  next_draw_ = now + kRedrawInterval;
  drawn_ = true;
  const std::int64_t seconds = std::chrono::duration_cast<std::chrono::seconds>(now - start_).count();
  // One column is left free: a full line makes some terminals wrap.
  const std::string line = "\r" + progress_line(label_, done_, total_, seconds, terminal_columns() - 1) + "\033[K";
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

}  // namespace packjit
