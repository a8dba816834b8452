#include "cli/date.hpp"

#include <fmt/format.h>

#include <chrono>

namespace packjit {

std::string today() {
  const auto now = std::chrono::floor<std::chrono::days>(std::chrono::system_clock::now());
  const std::chrono::year_month_day date(now);
  return fmt::format("{:04}-{:02}-{:02}", static_cast<int>(date.year()), static_cast<unsigned>(date.month()),
                     static_cast<unsigned>(date.day()));
}

std::string this_second() {
  using std::chrono::floor;
  const auto now = floor<std::chrono::seconds>(std::chrono::system_clock::now());
  const std::chrono::hh_mm_ss time(now - floor<std::chrono::days>(now));
  return fmt::format("{}T{:02}:{:02}:{:02}Z", today(), time.hours().count(), time.minutes().count(),
                     time.seconds().count());
}

}  // namespace packjit
