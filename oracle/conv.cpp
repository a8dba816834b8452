#include <algorithm>

#include "oracle/activations.hpp"
#include "oracle/oracle.hpp"
#include "oracle/sizes.hpp"

namespace packjit::oracle {
namespace {

// Both directions work on the run with its history in front, (W-1 + L, D): row r is column r of the initial state for
// r < W-1 and token r - (W-1) after that. Token t, weight column j then meet at row t + j, and the final state is the
// last W-1 rows, whatever the length is.

void check_input(const char* call, const ConvInput& in) {
  require_at_least(call, "length", in.length, 0);
  require_at_least(call, "dim", in.dim, 1);
  require_at_least(call, "width", in.width, 1);
  require_shape(call, "x", in.x, {in.length, in.dim});
  require_shape(call, "weight", in.weight, {in.dim, in.width});
  require_shape(call, "bias", in.bias, {in.dim}, Presence::optional);
  require_shape(call, "initial_states", in.initial_states, {in.dim, in.width - 1}, Presence::optional);
}

Array with_history(const ConvInput& in) {
  const std::int64_t history = in.width - 1;
  Array rows(static_cast<std::size_t>((history + in.length) * in.dim), 0.0);
  if (!in.initial_states.empty()) {
    for (std::int64_t d = 0; d < in.dim; ++d) {
      for (std::int64_t j = 0; j < history; ++j) rows[j * in.dim + d] = in.initial_states[d * history + j];
    }
  }
  std::copy(in.x.begin(), in.x.end(), rows.begin() + history * in.dim);
  return rows;
}

// The value before the activation.
double convolve(const ConvInput& in, const Array& rows, std::int64_t t, std::int64_t d) {
  double sum = in.bias.empty() ? 0.0 : in.bias[d];
  for (std::int64_t j = 0; j < in.width; ++j) sum += in.weight[d * in.width + j] * rows[(t + j) * in.dim + d];
  return sum;
}

}  // namespace

ConvOutput conv_forward(const ConvInput& in) {
  check_input("conv_forward", in);
  const std::int64_t history = in.width - 1;
  const Array rows = with_history(in);

  ConvOutput result;
  result.out.resize(in.x.size());
  for (std::int64_t t = 0; t < in.length; ++t) {
    for (std::int64_t d = 0; d < in.dim; ++d) {
      const double sum = convolve(in, rows, t, d);
      result.out[t * in.dim + d] = in.silu ? silu(sum) : sum;
    }
  }
  result.final_states.resize(static_cast<std::size_t>(in.dim * history));
  for (std::int64_t d = 0; d < in.dim; ++d) {
    for (std::int64_t j = 0; j < history; ++j) {
      result.final_states[d * history + j] = rows[(in.length + j) * in.dim + d];
    }
  }
  return result;
}

ConvGradient conv_backward(const ConvInput& in, const Array& dout, const Array& dfinal_states) {
  const char* call = "conv_backward";
  check_input(call, in);
  const std::int64_t history = in.width - 1;
  require_shape(call, "dout", dout, {in.length, in.dim});
  require_shape(call, "dfinal_states", dfinal_states, {in.dim, history}, Presence::optional);

  const Array rows = with_history(in);
  Array drows(rows.size(), 0.0);
  ConvGradient result;
  result.dweight.assign(in.weight.size(), 0.0);
  result.dbias.assign(static_cast<std::size_t>(in.dim), 0.0);

  for (std::int64_t t = 0; t < in.length; ++t) {
    for (std::int64_t d = 0; d < in.dim; ++d) {
      double dsum = dout[t * in.dim + d];
      if (in.silu) dsum *= silu_gradient(convolve(in, rows, t, d));
      result.dbias[d] += dsum;
      for (std::int64_t j = 0; j < in.width; ++j) {
        result.dweight[d * in.width + j] += dsum * rows[(t + j) * in.dim + d];
        drows[(t + j) * in.dim + d] += dsum * in.weight[d * in.width + j];
      }
    }
  }
  if (!dfinal_states.empty()) {
    for (std::int64_t d = 0; d < in.dim; ++d) {
      for (std::int64_t j = 0; j < history; ++j) {
        drows[(in.length + j) * in.dim + d] += dfinal_states[d * history + j];
      }
    }
  }

  result.dinitial_states.resize(static_cast<std::size_t>(in.dim * history));
  for (std::int64_t d = 0; d < in.dim; ++d) {
    for (std::int64_t j = 0; j < history; ++j) result.dinitial_states[d * history + j] = drows[j * in.dim + d];
  }
  result.dx.assign(drows.begin() + history * in.dim, drows.end());
  return result;
}

}  // namespace packjit::oracle
