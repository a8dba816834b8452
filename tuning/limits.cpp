#include "tuning/limits.hpp"

#include <algorithm>

namespace packjit {
namespace {

// Of one multiprocessor in one clock, sm_75 to sm_120.
constexpr double kExponentialsPerClock = 16;
constexpr double kInstructionsPerClock = 128;  // 4 schedulers, each a warp

}  // namespace

Work& Work::operator+=(const Work& other) {
  bytes += other.bytes;
  exponentials += other.exponentials;
  instructions += other.instructions;
  return *this;
}

double Limits::largest_ms() const { return std::max({memory_ms, exponential_ms, issue_ms}); }

std::string_view Limits::largest() const {
  if (memory_ms == largest_ms()) return "memory";
  return exponential_ms == largest_ms() ? "exponentials" : "issue";
}

Limits limits_of(const Work& work, const Rates& rates) {
  const double clocks_per_ms = rates.clock_mhz * 1e3 * rates.multiprocessors;
  return {work.bytes / rates.bytes_per_second * 1e3, work.exponentials / (kExponentialsPerClock * clocks_per_ms),
          work.instructions / (kInstructionsPerClock * clocks_per_ms)};
}

bool recomputes_states(const Spec& spec) {
  const bool stored = spec.values.has("checkpoints") && spec.values["checkpoints"] != 0;
  return spec.op == Operator::ssm_pack_bwd && !stored;
}

double exponentials_per_element(const Spec& spec) {
  constexpr int kExponentialAndReciprocal = 2;
  if (!is_scan(spec.op)) return spec.values["activation"] != 0 ? kExponentialAndReciprocal : 0;
  const int passes = recomputes_states(spec) ? 2 : 1;
  int count = passes * spec.values["d_state"];  // decays exp(dt * A)
  if (spec.values["softplus"] != 0) {
    // One exponential; the derivative shares it and has a reciprocal of its own.
    count += passes + (is_backward(spec.op) ? 1 : 0);
  }
  if (spec.values["z"] != 0) count += kExponentialAndReciprocal;  // silu; its derivative shares both
  return count;
}

double instructions_per_element(const Spec& spec) {
  if (!is_scan(spec.op)) {
    const int width = spec.values["conv_width"];
    return is_backward(spec.op) ? 3 * width + 15 : width + 8;
  }
  const int d_state = spec.values["d_state"];
  if (!is_backward(spec.op)) return 5 * d_state + 25;
  return 13 * d_state + (recomputes_states(spec) ? 4 * d_state : 0) + 60;
}

}  // namespace packjit
