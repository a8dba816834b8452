#include <algorithm>
#include <complex>
#include <limits>
#include <tuple>
#include <vector>

#include "oracle/activations.hpp"
#include "oracle/oracle.hpp"
#include "oracle/sizes.hpp"

namespace packjit::oracle {
namespace {

using Complex = std::complex<double>;

// The formulas are the same for real and complex states: these say what differs. As a complex state stands for itself
// and its conjugate, y is twice the real part; gradients are dL/d(re) + i * dL/d(im).
constexpr double kPair = 2.0;
double output_factor(double) { return 1.0; }
double output_factor(Complex) { return kPair; }
double conjugate(double x) { return x; }
Complex conjugate(Complex x) { return std::conj(x); }
double real_part(double x) { return x; }
double real_part(Complex x) { return x.real(); }

template <typename State>
constexpr std::int64_t kParts = sizeof(State) / sizeof(double);

template <typename State>
State read(const Array& array, std::int64_t index) {
  if constexpr (kParts<State> == 1) {
    return array[index];
  } else {
    return {array[2 * index], array[2 * index + 1]};
  }
}
template <typename State>
void add(Array& array, std::int64_t index, State value) {
  if constexpr (kParts<State> == 1) {
    array[index] += value;
  } else {
    array[2 * index] += value.real();
    array[2 * index + 1] += value.imag();
  }
}

// Values that the states of one channel take in an array.
std::int64_t values_of_state(const ScanInput& in) { return in.d_state * (in.complex_A ? kParts<Complex> : 1); }

void check_input(const char* call, const ScanInput& in) {
  require_at_least(call, "length", in.length, 0);
  require_at_least(call, "dim", in.dim, 1);
  require_at_least(call, "d_state", in.d_state, 1);
  require_at_least(call, "groups", in.groups, 1);
  if (in.dim % in.groups != 0) {
    throw std::invalid_argument(std::string("oracle ") + call + ": groups must divide dim, found groups " +
                                std::to_string(in.groups) + " and dim " + std::to_string(in.dim));
  }
  const std::int64_t values = values_of_state(in);
  require_shape(call, "u", in.u, {in.length, in.dim});
  require_shape(call, "delta", in.delta, {in.length, in.dim});
  require_shape(call, "A", in.A, {in.dim, values});
  for (const auto& [name, array, constant] :
       {std::tuple{"B", &in.B, in.constant_B}, std::tuple{"C", &in.C, in.constant_C}}) {
    if (constant) {
      require_shape(call, name, *array, {in.dim, values});
    } else {
      require_shape(call, name, *array, {in.length, in.groups, values});
    }
  }
  require_shape(call, "D", in.D, {in.dim}, Presence::optional);
  require_shape(call, "z", in.z, {in.length, in.dim}, Presence::optional);
  require_shape(call, "delta_bias", in.delta_bias, {in.dim}, Presence::optional);
  require_shape(call, "initial_states", in.initial_states, {in.dim, values}, Presence::optional);
}

// delta + delta_bias, before softplus.
double raw_step(const ScanInput& in, std::int64_t t, std::int64_t d) {
  return in.delta[t * in.dim + d] + (in.delta_bias.empty() ? 0.0 : in.delta_bias[d]);
}

double step(const ScanInput& in, std::int64_t t, std::int64_t d) {
  const double raw = raw_step(in, t, d);
  return in.softplus ? softplus(raw) : raw;
}

// Which value of B or C is the first that channel d uses at token t.
std::int64_t first_of(const ScanInput& in, bool constant, std::int64_t t, std::int64_t d) {
  const std::int64_t group = d / (in.dim / in.groups);
  return (constant ? d : t * in.groups + group) * in.d_state;
}

// (N) of one channel, zeros where `array` is absent.
template <typename State>
std::vector<State> states_of(const ScanInput& in, const Array& array, std::int64_t d) {
  std::vector<State> states(static_cast<std::size_t>(in.d_state));
  if (array.empty()) return states;
  for (std::int64_t n = 0; n < in.d_state; ++n) states[n] = read<State>(array, d * in.d_state + n);
  return states;
}

template <typename State>
ScanOutput forward(const ScanInput& in) {
  const std::int64_t states = in.d_state;
  ScanOutput result;
  result.out.resize(in.u.size());
  result.final_states.resize(in.A.size());
  double slowest = -std::numeric_limits<double>::infinity();
  bool any_mean = false;

  for (std::int64_t d = 0; d < in.dim; ++d) {
    std::vector<State> h = states_of<State>(in, in.initial_states, d);
    const std::vector<State> A = states_of<State>(in, in.A, d);
    double dt_sum = 0.0;

    for (std::int64_t t = 0; t < in.length; ++t) {
      const std::int64_t at = t * in.dim + d;
      const std::int64_t b = first_of(in, in.constant_B, t, d), c = first_of(in, in.constant_C, t, d);
      const double u = in.u[at];
      const double dt = step(in, t, d);
      dt_sum += dt;

      double y = 0.0;
      for (std::int64_t n = 0; n < states; ++n) {
        h[n] = std::exp(dt * A[n]) * h[n] + dt * read<State>(in.B, b + n) * u;
        y += output_factor(h[n]) * real_part(read<State>(in.C, c + n) * h[n]);
      }
      if (!in.D.empty()) y += in.D[d] * u;
      result.out[at] = in.z.empty() ? y : y * silu(in.z[at]);
    }

    for (std::int64_t n = 0; n < states; ++n) add(result.final_states, d * states + n, h[n]);
    if (in.length == 0) continue;
    for (std::int64_t n = 0; n < states; ++n) {
      const double mean = dt_sum / static_cast<double>(in.length) * real_part(A[n]);
      if (mean >= slowest) {  // false for NaN
        slowest = mean;
        any_mean = true;
      }
    }
  }
  result.mean_dt_A_slowest = any_mean ? slowest : 0.0;
  return result;
}

template <typename State>
ScanGradient backward(const ScanInput& in, const Array& dout, const Array& dfinal_states) {
  const std::int64_t states = in.d_state;
  ScanGradient result;
  result.du.assign(in.u.size(), 0.0);
  result.ddelta.assign(in.delta.size(), 0.0);
  result.dA.assign(in.A.size(), 0.0);
  result.dB.assign(in.B.size(), 0.0);
  result.dC.assign(in.C.size(), 0.0);
  result.dD.assign(in.D.size(), 0.0);
  result.dz.assign(in.z.size(), 0.0);
  result.ddelta_bias.assign(in.delta_bias.size(), 0.0);
  result.dinitial_states.assign(in.A.size(), 0.0);

  // One channel at a time, so that the history takes L * N values rather than L * D * N. h_before holds the state that
  // token t starts from at [t, n], and the final state at [L, n]; decay holds exp(dt[t] * A[n]).
  std::vector<State> h_before(static_cast<std::size_t>((in.length + 1) * states));
  std::vector<State> decay(static_cast<std::size_t>(in.length * states));

  for (std::int64_t d = 0; d < in.dim; ++d) {
    const std::vector<State> A = states_of<State>(in, in.A, d);
    const std::vector<State> first = states_of<State>(in, in.initial_states, d);
    std::copy(first.begin(), first.end(), h_before.begin());
    for (std::int64_t t = 0; t < in.length; ++t) {
      const std::int64_t b = first_of(in, in.constant_B, t, d);
      const double u = in.u[t * in.dim + d];
      const double dt = step(in, t, d);
      for (std::int64_t n = 0; n < states; ++n) {
        decay[t * states + n] = std::exp(dt * A[n]);
        h_before[(t + 1) * states + n] =
            decay[t * states + n] * h_before[t * states + n] + dt * read<State>(in.B, b + n) * u;
      }
    }

    // dh is the gradient of the state after token t, from everything later than t.
    std::vector<State> dh = states_of<State>(in, dfinal_states, d);

    for (std::int64_t t = in.length - 1; t >= 0; --t) {
      const std::int64_t at = t * in.dim + d;
      const std::int64_t b = first_of(in, in.constant_B, t, d), c = first_of(in, in.constant_C, t, d);
      const State* a = &decay[t * states];
      const State* before = &h_before[t * states];
      const State* after = &h_before[(t + 1) * states];
      const double u = in.u[at];
      const double dt = step(in, t, d);

      // out = y * silu(z)
      double dy = dout[at];
      if (!in.z.empty()) {
        double y = in.D.empty() ? 0.0 : in.D[d] * u;
        for (std::int64_t n = 0; n < states; ++n) {
          y += output_factor(after[n]) * real_part(read<State>(in.C, c + n) * after[n]);
        }
        result.dz[at] = dy * y * silu_gradient(in.z[at]);
        dy *= silu(in.z[at]);
      }

      // y = sum C * h + D * u
      double du = 0.0;
      if (!in.D.empty()) {
        du = dy * in.D[d];
        result.dD[d] += dy * u;
      }

      // h[t] = exp(dt * A) * h[t-1] + dt * B * u
      double ddt = 0.0;
      for (std::int64_t n = 0; n < states; ++n) {
        const auto B = read<State>(in.B, b + n), C = read<State>(in.C, c + n);
        const double dy_of_h = output_factor(C) * dy;
        add(result.dC, c + n, dy_of_h * conjugate(after[n]));
        dh[n] += dy_of_h * conjugate(C);
        add(result.dB, b + n, dh[n] * dt * u);
        du += dt * real_part(conjugate(dh[n]) * B);
        ddt += real_part(conjugate(dh[n]) * (A[n] * a[n] * before[n] + B * u));
        add(result.dA, d * states + n, dh[n] * dt * conjugate(a[n] * before[n]));
        dh[n] *= conjugate(a[n]);
      }
      result.du[at] = du;

      // dt = softplus(delta + delta_bias)
      const double draw = in.softplus ? ddt * softplus_gradient(raw_step(in, t, d)) : ddt;
      result.ddelta[at] = draw;
      if (!in.delta_bias.empty()) result.ddelta_bias[d] += draw;
    }
    for (std::int64_t n = 0; n < states; ++n) add(result.dinitial_states, d * states + n, dh[n]);
  }
  return result;
}

}  // namespace

ScanOutput scan_forward(const ScanInput& in) {
  check_input("scan_forward", in);
  return in.complex_A ? forward<Complex>(in) : forward<double>(in);
}

ScanGradient scan_backward(const ScanInput& in, const Array& dout, const Array& dfinal_states) {
  const char* call = "scan_backward";
  check_input(call, in);
  require_shape(call, "dout", dout, {in.length, in.dim});
  require_shape(call, "dfinal_states", dfinal_states, {in.dim, values_of_state(in)}, Presence::optional);
  return in.complex_A ? backward<Complex>(in, dout, dfinal_states) : backward<double>(in, dout, dfinal_states);
}

}  // namespace packjit::oracle
