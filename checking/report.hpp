#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "generator/operators.hpp"

namespace packjit::checking {

/// What a result was compared with.
enum class CheckKind {
  oracle,              ///< each sequence alone in fp64
  second_config,       ///< the same under another Config
  padded,              ///< each sequence alone in a padded row, on the same device
  stored_checkpoints,  ///< the backward with states that a forward has stored
  cut,                 ///< sequences cut in two calls that hand over states
  successive_calls,    ///< the pieces that the packer cuts, in its calls
  isolation,           ///< bits, after values of another sequence changed
  repeat,              ///< bits of a second call
  thread_order,        ///< bits under other orders of threads (host execution)
  boundary_form,       ///< bits under the other boundary forms
  cut_bits,            ///< bits of the packer's pieces against the uncut run; pieces that differ are counted
};
[[nodiscard]] std::string_view name_of(CheckKind kind);

/// One tensor of one comparison.
struct Result {
  CheckKind check = CheckKind::oracle;
  Operator op = Operator::ssm_pack_fwd;
  Dtype dtype = Dtype::fp32;
  std::string tensor;
  double error =
      0;  ///< relative L2 error, the worst of the whole tensor and every sequence; bits: elements that differ
  double bound = 0;  ///< largest allowed error; 0 where bits are compared
  std::string case_name;
  std::string where;  ///< "all", "sequence 3 (5 tokens)", "padding"
  [[nodiscard]] bool pass() const { return error <= bound; }
};

/// Results of many cases, and how to show them.
class Report {
 public:
  void add(std::vector<Result> results);
  [[nodiscard]] const std::vector<Result>& results() const { return results_; }
  [[nodiscard]] bool pass() const;
  /// The failing result that misses its bound by the largest factor; nullptr when all pass.
  [[nodiscard]] const Result* worst_failure() const;

  /// Operator x dtype x tensor: the worst relative error against its bound; then each bit-for-bit check.
  [[nodiscard]] std::string table() const;
  [[nodiscard]] nlohmann::json json() const;

 private:
  std::vector<Result> results_;
};

/// "ssm_pack_bwd bf16 dB: error 1.2e-2 against a bound of 4.0e-3 (oracle, case \"...\", sequence 3)".
[[nodiscard]] std::string describe(const Result& result);

}  // namespace packjit::checking
