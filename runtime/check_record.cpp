#include "runtime/check_record.hpp"

#include <fmt/format.h>

#include "runtime/digest.hpp"

namespace packjit {

std::string check_text(const CheckRecord& record) {
  return fmt::format("PJCHECK 1\nkernel {}\nimages {}\ngpu {}\ndriver {}\n", record.kernel, record.images, record.arch,
                     record.driver);
}

std::string short_name(const CheckRecord& record) { return digest_hex(check_text(record)); }

}  // namespace packjit
