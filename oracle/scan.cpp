#include <limits>

#include "oracle/activations.hpp"
#include "oracle/oracle.hpp"
#include "oracle/sizes.hpp"

namespace packjit::oracle {
namespace {

void check_input(const char* call, const ScanInput& in) {
  require_at_least(call, "length", in.length, 0);
  require_at_least(call, "dim", in.dim, 1);
  require_at_least(call, "d_state", in.d_state, 1);
  require_at_least(call, "groups", in.groups, 1);
  if (in.dim % in.groups != 0) {
    throw std::invalid_argument(std::string("oracle ") + call + ": groups must divide dim, found groups " +
                                std::to_string(in.groups) + " and dim " + std::to_string(in.dim));
  }
  require_shape(call, "u", in.u, {in.length, in.dim});
  require_shape(call, "delta", in.delta, {in.length, in.dim});
  require_shape(call, "A", in.A, {in.dim, in.d_state});
  require_shape(call, "B", in.B, {in.length, in.groups, in.d_state});
  require_shape(call, "C", in.C, {in.length, in.groups, in.d_state});
  require_shape(call, "D", in.D, {in.dim}, Presence::optional);
  require_shape(call, "z", in.z, {in.length, in.dim}, Presence::optional);
  require_shape(call, "delta_bias", in.delta_bias, {in.dim}, Presence::optional);
  require_shape(call, "initial_states", in.initial_states, {in.dim, in.d_state}, Presence::optional);
}

// delta + delta_bias, before softplus.
double raw_step(const ScanInput& in, std::int64_t t, std::int64_t d) {
  return in.delta[t * in.dim + d] + (in.delta_bias.empty() ? 0.0 : in.delta_bias[d]);
}

double step(const ScanInput& in, std::int64_t t, std::int64_t d) {
  const double raw = raw_step(in, t, d);
  return in.softplus ? softplus(raw) : raw;
}

// Where the N values of B or C that channel d uses at token t begin.
std::int64_t group_offset(const ScanInput& in, std::int64_t t, std::int64_t d) {
  const std::int64_t group = d / (in.dim / in.groups);
  return (t * in.groups + group) * in.d_state;
}

double initial_state(const ScanInput& in, std::int64_t d, std::int64_t n) {
  return in.initial_states.empty() ? 0.0 : in.initial_states[d * in.d_state + n];
}

}  // namespace

ScanOutput scan_forward(const ScanInput& in) {
  check_input("scan_forward", in);
  const std::int64_t states = in.d_state;

  ScanOutput result;
  result.out.resize(in.u.size());
  result.final_states.resize(in.A.size());
  double slowest = -std::numeric_limits<double>::infinity();
  bool any_mean = false;

  for (std::int64_t d = 0; d < in.dim; ++d) {
    double* h = &result.final_states[d * states];
    for (std::int64_t n = 0; n < states; ++n) h[n] = initial_state(in, d, n);
    const double* A = &in.A[d * states];
    double dt_sum = 0.0;

    for (std::int64_t t = 0; t < in.length; ++t) {
      const std::int64_t at = t * in.dim + d;
      const double* B = &in.B[group_offset(in, t, d)];
      const double* C = &in.C[group_offset(in, t, d)];
      const double u = in.u[at];
      const double dt = step(in, t, d);
      dt_sum += dt;

      double y = 0.0;
      for (std::int64_t n = 0; n < states; ++n) {
        h[n] = std::exp(dt * A[n]) * h[n] + dt * B[n] * u;
        y += C[n] * h[n];
      }
      if (!in.D.empty()) y += in.D[d] * u;
      result.out[at] = in.z.empty() ? y : y * silu(in.z[at]);
    }

    if (in.length == 0) continue;
    for (std::int64_t n = 0; n < states; ++n) {
      const double mean = dt_sum / static_cast<double>(in.length) * A[n];
      if (mean >= slowest) {  // false for NaN
        slowest = mean;
        any_mean = true;
      }
    }
  }
  result.mean_dt_A_slowest = any_mean ? slowest : 0.0;
  return result;
}

ScanGradient scan_backward(const ScanInput& in, const Array& dout, const Array& dfinal_states) {
  const char* call = "scan_backward";
  check_input(call, in);
  const std::int64_t states = in.d_state;
  require_shape(call, "dout", dout, {in.length, in.dim});
  require_shape(call, "dfinal_states", dfinal_states, {in.dim, states}, Presence::optional);

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
  Array h_before(static_cast<std::size_t>((in.length + 1) * states));
  Array decay(static_cast<std::size_t>(in.length * states));

  for (std::int64_t d = 0; d < in.dim; ++d) {
    const double* A = &in.A[d * states];
    for (std::int64_t n = 0; n < states; ++n) h_before[n] = initial_state(in, d, n);
    for (std::int64_t t = 0; t < in.length; ++t) {
      const double* B = &in.B[group_offset(in, t, d)];
      const double u = in.u[t * in.dim + d];
      const double dt = step(in, t, d);
      for (std::int64_t n = 0; n < states; ++n) {
        decay[t * states + n] = std::exp(dt * A[n]);
        h_before[(t + 1) * states + n] = decay[t * states + n] * h_before[t * states + n] + dt * B[n] * u;
      }
    }

    // dh is the gradient of the state after token t, from everything later than t.
    double* dh = &result.dinitial_states[d * states];
    double* dA = &result.dA[d * states];
    if (!dfinal_states.empty()) {
      for (std::int64_t n = 0; n < states; ++n) dh[n] = dfinal_states[d * states + n];
    }

    for (std::int64_t t = in.length - 1; t >= 0; --t) {
      const std::int64_t at = t * in.dim + d;
      const double* B = &in.B[group_offset(in, t, d)];
      const double* C = &in.C[group_offset(in, t, d)];
      double* dB = &result.dB[group_offset(in, t, d)];
      double* dC = &result.dC[group_offset(in, t, d)];
      const double* a = &decay[t * states];
      const double* before = &h_before[t * states];
      const double* after = &h_before[(t + 1) * states];
      const double u = in.u[at];
      const double dt = step(in, t, d);

      // out = y * silu(z)
      double dy = dout[at];
      if (!in.z.empty()) {
        double y = in.D.empty() ? 0.0 : in.D[d] * u;
        for (std::int64_t n = 0; n < states; ++n) y += C[n] * after[n];
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
        dC[n] += dy * after[n];
        dh[n] += dy * C[n];
        dB[n] += dh[n] * dt * u;
        du += dh[n] * dt * B[n];
        ddt += dh[n] * (A[n] * a[n] * before[n] + B[n] * u);
        dA[n] += dh[n] * dt * a[n] * before[n];
        dh[n] *= a[n];
      }
      result.du[at] = du;

      // dt = softplus(delta + delta_bias)
      const double draw = in.softplus ? ddt * softplus_gradient(raw_step(in, t, d)) : ddt;
      result.ddelta[at] = draw;
      if (!in.delta_bias.empty()) result.ddelta_bias[d] += draw;
    }
  }
  return result;
}

}  // namespace packjit::oracle
