#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checking/report.hpp"
#include "packing/packing.hpp"
#include "runtime/device.hpp"

namespace packjit {

/// The longest of some documents in the pieces that the packer cuts, against the same document uncut.
struct CutVerification {
  checking::Report report;
  std::string text;         ///< what was cut, and which pieces have the bits of the uncut run
  nlohmann::json document;  ///< the same
};

/// `options` are those of the packer. Other documents fill the rows up. Each operator, forward and backward, in fp32
/// and bf16, with `dim` channels. Throws std::invalid_argument where no document is longer than the cut.
[[nodiscard]] CutVerification verify_cut(Device& device, const std::vector<Document>& documents,
                                         const PackOptions& options, std::int64_t dim);

}  // namespace packjit
