#pragma once

#include <cstdint>
#include <vector>

/// The operators of packed Mamba in plain fp64, one sequence at a time, written from the formulas of docs/design.md.
/// Shares no code with the kernels. All arrays are dense, row-major, in the shape given; empty means absent.
namespace packjit::oracle {

using Array = std::vector<double>;

/// One sequence's convolution, length L, dim D, width W. y = act(bias + sum_k weight[W-1-k] * x[t-k]).
struct ConvInput {
  std::int64_t length = 0, dim = 0, width = 0;
  bool silu = true;
  Array x;               ///< (L, D)
  Array weight;          ///< (D, W); the last column meets the current token
  Array bias;            ///< (D) or empty
  Array initial_states;  ///< (D, W-1) oldest first, or empty for zeros
};
struct ConvOutput {
  Array out;           ///< (L, D)
  Array final_states;  ///< (D, W-1)
};
struct ConvGradient {
  Array dx, dweight, dbias, dinitial_states;
};
[[nodiscard]] ConvOutput conv_forward(const ConvInput& in);
/// dout (L, D); dfinal_states (D, W-1) or empty for zeros. dbias, dinitial_states are filled whether or not given.
[[nodiscard]] ConvGradient conv_backward(const ConvInput& in, const Array& dout, const Array& dfinal_states);

/// One sequence's selective scan, length L, dim D, d_state N, groups G (channel d uses group d / (D / G)).
struct ScanInput {
  std::int64_t length = 0, dim = 0, d_state = 0, groups = 1;
  bool softplus = true;
  Array u, delta;        ///< (L, D)
  Array A;               ///< (D, N)
  Array B, C;            ///< (L, G, N)
  Array D;               ///< (D) or empty
  Array z;               ///< (L, D) or empty
  Array delta_bias;      ///< (D) or empty
  Array initial_states;  ///< (D, N) or empty for zeros
};
struct ScanOutput {
  Array out;           ///< (L, D)
  Array final_states;  ///< (D, N)
  double mean_dt_A_slowest = 0;  ///< the largest (least negative) mean over t of dt*A over all (channel, state)
};
struct ScanGradient {
  Array du, ddelta, dA, dB, dC, dD, dz, ddelta_bias, dinitial_states;
};
[[nodiscard]] ScanOutput scan_forward(const ScanInput& in);
[[nodiscard]] ScanGradient scan_backward(const ScanInput& in, const Array& dout, const Array& dfinal_states);

}  // namespace packjit::oracle
