#pragma once

#include <string>

namespace packjit {

/// What a passed self-check holds for: these images, on GPUs of this architecture, with this driver.
struct CheckRecord {
  std::string kernel;  ///< operator, Spec and Config as Source::key has them
  std::string images;  ///< digest_hex() of the digests of cubin and PTX
  std::string arch;    ///< of the GPU, "sm_90"
  std::string driver;  ///< the CUDA version that the driver supports, "13.0"
};

/// The bytes of docs/cache_format.md, "A passed self-check".
[[nodiscard]] std::string check_text(const CheckRecord& record);

/// 32 hexadecimal digits: the digest of the text. The file has this name and kCheckedEnding.
[[nodiscard]] std::string short_name(const CheckRecord& record);

}  // namespace packjit
