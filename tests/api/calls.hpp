#pragma once

#include <functional>

#include "checking/case.hpp"
#include "tests/api/handles.hpp"

// Cases of checking/ through the C interface.

namespace packjit::testing {

inline std::int32_t c_dtype(ElementType type) {
  if (type == ElementType::complex64) return PACKJIT_COMPLEX64;
  return type == ElementType::fp32 ? PACKJIT_FP32 : type == ElementType::bf16 ? PACKJIT_BF16 : PACKJIT_FP16;
}

inline packjit_operator_options options_of(const checking::Case& c) {
  const auto on_off = [](bool on) { return on ? PACKJIT_ON : PACKJIT_OFF; };
  packjit_operator_options o{};
  o.dtype = c_dtype(element_type(c.dtype));
  o.initial_states = on_off(c.initial_states);
  o.final_states = on_off(c.final_states);
  if (is_scan(c.op)) {
    o.op = PACKJIT_SSM_PACK;
    o.d_state = static_cast<std::int32_t>(c.d_state);
    o.softplus = on_off(c.softplus);
    o.D = on_off(c.D);
    o.z = on_off(c.z);
    o.delta_bias = on_off(c.delta_bias);
    o.checkpoints = on_off(c.checkpoints);
    o.constant_B = on_off(c.constant_B);
    o.constant_C = on_off(c.constant_C);
    o.complex_A = on_off(c.complex_A);
  } else {
    o.op = PACKJIT_CONV1D_PACK;
    o.conv_width = static_cast<std::int32_t>(c.conv_width);
    o.bias = on_off(c.bias);
    o.silu = on_off(c.silu);
    o.fp32_weights = on_off(c.fp32_weights);
    o.map_storage = static_cast<std::int32_t>(c.map);
  }
  return o;
}

/// Calls the function of `op` with the tensors that `get` knows by name; null for others.
inline packjit_status call_operator(Operator op, packjit_operator* handle, void* stream, const packjit_map* map,
                                    const std::function<const packjit_tensor*(const char*)>& get,
                                    const packjit_workspace* workspace) {
  if (op == Operator::conv1d_pack_fwd) {
    packjit_conv1d_forward_tensors t{};
    t.struct_size = sizeof(t);
    t.x = get("x"), t.weight = get("weight"), t.bias = get("bias"), t.initial_states = get("initial_states");
    t.out = get("out"), t.final_states = get("final_states");
    return packjit_conv1d_forward(handle, stream, map, &t, workspace);
  }
  if (op == Operator::conv1d_pack_bwd) {
    packjit_conv1d_backward_tensors t{};
    t.struct_size = sizeof(t);
    t.x = get("x"), t.weight = get("weight"), t.bias = get("bias"), t.initial_states = get("initial_states");
    t.dout = get("dout"), t.dfinal_states = get("dfinal_states");
    t.dx = get("dx"), t.dweight = get("dweight"), t.dbias = get("dbias"), t.dinitial_states = get("dinitial_states");
    return packjit_conv1d_backward(handle, stream, map, &t, workspace);
  }
  if (op == Operator::ssm_pack_fwd) {
    packjit_ssm_forward_tensors t{};
    t.struct_size = sizeof(t);
    t.u = get("u"), t.delta = get("delta"), t.A = get("A"), t.B = get("B"), t.C = get("C"), t.D = get("D");
    t.z = get("z"), t.delta_bias = get("delta_bias"), t.initial_states = get("initial_states");
    t.out = get("out"), t.final_states = get("final_states"), t.checkpoints = get("checkpoints");
    return packjit_ssm_forward(handle, stream, map, &t, workspace);
  }
  packjit_ssm_backward_tensors t{};
  t.struct_size = sizeof(t);
  t.u = get("u"), t.delta = get("delta"), t.A = get("A"), t.B = get("B"), t.C = get("C"), t.D = get("D");
  t.z = get("z"), t.delta_bias = get("delta_bias"), t.initial_states = get("initial_states");
  t.dout = get("dout"), t.dfinal_states = get("dfinal_states"), t.checkpoints = get("checkpoints");
  t.du = get("du"), t.ddelta = get("ddelta"), t.dA = get("dA"), t.dB = get("dB"), t.dC = get("dC");
  t.dD = get("dD"), t.dz = get("dz"), t.ddelta_bias = get("ddelta_bias"), t.dinitial_states = get("dinitial_states");
  return packjit_ssm_backward(handle, stream, map, &t, workspace);
}

}  // namespace packjit::testing
