#pragma once

#include <cstdint>
#include <vector>

/// The operators of packed Mamba in plain fp64, one sequence at a time, written from the formulas of docs/design.md.
/// Shares no code with the kernels. All arrays are dense, row-major, in the shape given; empty means absent.
///
/// Sizes are at least 1, except that a length may be 0: such a run has no outputs, and its final state is its initial
/// state. Every function throws std::invalid_argument, naming the array, where a size does not fit. All are pure and
/// safe to call from any thread.
namespace packjit::oracle {

using Array = std::vector<double>;

/// One sequence's convolution, length L, dim D, width W. y[t] = act(bias + sum over k of weight[W-1-k] * x[t-k]); for
/// k > t the tap reads column W-1-(k-t) of the initial state.
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
  Array final_states;  ///< (D, W-1), the last W-1 inputs, oldest first, reaching into the initial state if L < W-1
};
struct ConvGradient {
  Array dx;               ///< (L, D)
  Array dweight;          ///< (D, W)
  Array dbias;            ///< (D)
  Array dinitial_states;  ///< (D, W-1)
};
[[nodiscard]] ConvOutput conv_forward(const ConvInput& in);
/// dout (L, D); dfinal_states (D, W-1) or empty for zeros. dbias, dinitial_states are filled whether or not given.
[[nodiscard]] ConvGradient conv_backward(const ConvInput& in, const Array& dout, const Array& dfinal_states);

/// One sequence's selective scan, length L, dim D, d_state N, groups G (channel d uses group d / (D / G)).
/// dt = softplus(delta + delta_bias), linear above 20; h[t] = exp(dt*A) * h[t-1] + dt*B*u;
/// y = sum over n of C*h + D*u; out = y * silu(z).
///
/// With `complex_A`, A, B, C and states are complex, each two values in the arrays, the real part first, and y sums
/// 2 * Re(C*h). Gradients are dL/d(re), then dL/d(im).
struct ScanInput {
  std::int64_t length = 0, dim = 0, d_state = 0, groups = 1;
  bool softplus = true;
  bool complex_A = false;
  bool constant_B = false, constant_C = false;  ///< (D, N), the same for all tokens
  Array u, delta;                               ///< (L, D)
  Array A;                                      ///< (D, N)
  Array B, C;                                   ///< (L, G, N), or (D, N) where constant
  Array D;                                      ///< (D) or empty
  Array z;                                      ///< (L, D) or empty
  Array delta_bias;                             ///< (D) or empty
  Array initial_states;                         ///< (D, N) or empty for zeros
};
struct ScanOutput {
  Array out;           ///< (L, D)
  Array final_states;  ///< (D, N)
  /// The largest (least negative) mean over t of dt*A over all (channel, state): the slowest state's decay a token, for
  /// the fp32 bound of docs/design.md section 2. 0 where the length is 0 or no mean is a number.
  double mean_dt_A_slowest = 0;
};
struct ScanGradient {
  Array du, ddelta;       ///< (L, D)
  Array dA;               ///< (D, N)
  Array dB, dC;           ///< (L, G, N), or (D, N) where constant
  Array dD;               ///< (D); empty where D is absent
  Array dz;               ///< (L, D); empty where z is absent
  Array ddelta_bias;      ///< (D); empty where delta_bias is absent
  Array dinitial_states;  ///< (D, N), filled whether or not initial_states is given
};
[[nodiscard]] ScanOutput scan_forward(const ScanInput& in);
/// dout (L, D); dfinal_states (D, N) or empty for zeros.
[[nodiscard]] ScanGradient scan_backward(const ScanInput& in, const Array& dout, const Array& dfinal_states);

}  // namespace packjit::oracle
