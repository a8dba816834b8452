"""What a Mamba block does between in_proj and out_proj, forward and backward as one, so that nothing is copied.

Made of separate operators, autograd would join the gradients of x and z, add the two gradients of the convolution's
output, and join those of dt, B and C: passes over memory, 0.3 ms a layer at 16,384 tokens and d_inner 4,096 on an H200.
Here each gradient is written where the next product reads it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from packjit.torch import ops
from packjit.torch.functional import conv1d_pack, ssm_pack
from packjit.torch.sequence_map import SequenceMap, live_map, refuse_changed


def mamba_inner(xz: Tensor, conv_weight: Tensor, conv_bias: Tensor | None, x_proj_weight: Tensor,
                dt_proj_weight: Tensor, A: Tensor, D: Tensor, delta_bias: Tensor, seq_map: SequenceMap,
                checkpoints: bool = False) -> Tensor:
    """x, z = xz; x = silu(conv(x)); dt, B, C = x @ x_proj_weight.T; delta = dt @ dt_proj_weight.T; scan with z and D.

    xz: (batch, seqlen, 2 d_inner), fp32, fp16 or bf16. conv_weight: (d_inner, width), conv_bias: (d_inner),
    x_proj_weight: (dt_rank + 2 d_state, d_inner), dt_proj_weight: (d_inner, dt_rank), of any floating dtype: they are
    used in xz's. A: (d_inner, d_state), D and delta_bias: (d_inner), fp32. Gives (batch, seqlen, d_inner).
    """
    arguments = (xz, conv_weight, conv_bias, x_proj_weight, dt_proj_weight, A, D, delta_bias)
    if not torch.compiler.is_compiling() and ops.is_plain(arguments):
        device_type = xz.device.type
        if torch.is_autocast_enabled(device_type):
            xz = ops.to_autocast_dtype(xz, device_type)
        with ops.without_autocast(device_type):
            return _MambaInner.apply(live_map(seq_map.handle), seq_map.handle,
                                     checkpoints and torch.is_grad_enabled(), xz, *arguments[1:])
    return separately(xz, conv_weight, conv_bias, product(x_proj_weight), product(dt_proj_weight), A, D, delta_bias,
                      seq_map, checkpoints)


def separately(xz: Tensor, conv_weight: Tensor, conv_bias: Tensor | None, x_proj: Callable, dt_proj: Callable,
               A: Tensor, D: Tensor, delta_bias: Tensor | None, seq_map: SequenceMap,
               checkpoints: bool = False) -> Tensor:
    """mamba_inner of separate operators, for whatever traces or intercepts them, and where projections are more than
    a product with a weight: x_proj(x) and dt_proj(dt) may be any functions of activations."""
    x, z = xz.chunk(2, dim=-1)
    conv_weight, conv_bias = conv_weight.to(xz.dtype), None if conv_bias is None else conv_bias.to(xz.dtype)
    x = conv1d_pack(x, conv_weight, conv_bias, seq_map=seq_map)
    projected = x_proj(x).to(x.dtype)
    dt, B, C = projected.split(_sizes(projected, A), dim=-1)
    return ssm_pack(x, dt_proj(dt).to(x.dtype), A, B.unsqueeze(2), C.unsqueeze(2), D, z, delta_bias, seq_map=seq_map,
                    checkpoints=checkpoints)


def product(weight: Tensor) -> Callable[[Tensor], Tensor]:
    """What a Linear without bias computes, in the activation's dtype."""
    return lambda activation: activation @ weight.to(activation.dtype).t()


def _sizes(projected: Tensor, A: Tensor) -> list[int]:
    """Channels of dt, B and C in x_proj's output."""
    return [projected.shape[-1] - 2 * A.shape[1], A.shape[1], A.shape[1]]


class _MambaInner(torch.autograd.Function):
    @staticmethod
    def forward(ctx, seq_map, handle, checkpoints, xz, conv_weight, conv_bias, x_proj_weight, dt_proj_weight, A, D,
                delta_bias):
        conv_weight, conv_bias, x_proj_weight, dt_proj_weight = [
            None if weight is None else weight.to(xz.dtype)
            for weight in (conv_weight, conv_bias, x_proj_weight, dt_proj_weight)]
        x_in, z = xz.chunk(2, dim=-1)
        x, _ = ops.conv_forward(seq_map, x_in, conv_weight, conv_bias, None, True, False)
        projected = x @ x_proj_weight.t()
        dt, B, C = projected.split(_sizes(projected, A), dim=-1)
        delta = dt @ dt_proj_weight.t()
        y, _, stored = ops.ssm_forward(
            seq_map, (x, delta, A, B.unsqueeze(2), C.unsqueeze(2), D, z, delta_bias, None), True, False,
            checkpoints and any(ctx.needs_input_grad))
        ctx.save_for_backward(xz, conv_weight, conv_bias, x_proj_weight, dt_proj_weight, A, D, delta_bias, x, projected,
                              delta, stored, handle)
        ctx.seq_map, ctx.handle, ctx.version = seq_map, handle, handle._version
        return y

    @staticmethod
    @ops.first_derivative("the gradient of packjit.torch.Mamba")
    def backward(ctx, dy):
        (xz, conv_weight, conv_bias, x_proj_weight, dt_proj_weight, A, D, delta_bias, x, projected, delta, stored,
         handle) = ctx.saved_tensors
        refuse_changed(ctx.handle, ctx.version, handle)
        sizes = _sizes(projected, A)
        x_in, z = xz.chunk(2, dim=-1)
        dt, B, C = projected.split(sizes, dim=-1)
        if ops.needs_operators(dy):  # as in a batch of gradients: nothing can be written in place
            dx, ddelta, dA, dB, dC, dD, dz, ddelta_bias, _ = ops.op_ssm_backward(
                x, delta, A, B.unsqueeze(2), C.unsqueeze(2), D, z, delta_bias, None, dy, None, stored, handle, True)
            dprojected = torch.cat((ddelta @ dt_proj_weight, dB.squeeze(2), dC.squeeze(2)), dim=-1)
            dx_in, dconv_weight, dconv_bias, _ = ops.op_conv_backward(
                x_in, conv_weight, conv_bias, None, dx + dprojected @ x_proj_weight, None, handle, True)
            return (None, None, None, torch.cat((dx_in, dz), dim=-1), dconv_weight, dconv_bias,
                    _summed_product(dprojected, x), _summed_product(ddelta, dt), dA, dD, ddelta_bias)
        dy = dy.resolve_neg()
        dxz, dprojected = [torch.empty_like(of, memory_format=torch.contiguous_format) for of in (xz, projected)]
        dx_in, dz = dxz.chunk(2, dim=-1)
        _, dB, dC = dprojected.split(sizes, dim=-1)
        dx, ddelta, dA, _, _, dD, _, ddelta_bias, _ = ops.ssm_backward(
            ctx.seq_map, x, delta, A, B.unsqueeze(2), C.unsqueeze(2), D, z, delta_bias, None, dy, None, stored, True,
            dB=dB.unsqueeze(2), dC=dC.unsqueeze(2), dz=dz)

        # (tokens, channels) from here on
        ddelta = ddelta.flatten(0, 1)
        dprojected = dprojected.view(-1, sum(sizes))
        torch.mm(ddelta, dt_proj_weight, out=dprojected[:, :sizes[0]])
        ddt_proj_weight = _summed_product(ddelta, dt)
        dx_proj_weight = _summed_product(dprojected, x)
        dx = dx.flatten(0, 1).addmm_(dprojected, x_proj_weight).view(dx.shape)

        _, dconv_weight, dconv_bias, _ = ops.conv_backward(ctx.seq_map, x_in, conv_weight, conv_bias, None, dx, None,
                                                           True, dx=dx_in)
        return (None, None, None, dxz, dconv_weight, dconv_bias, dx_proj_weight, ddt_proj_weight, dA, dD, ddelta_bias)


def _summed_product(rows: Tensor, columns: Tensor) -> Tensor:
    """Sum over tokens of rows[t] times columns[t], (channels of rows, channels of columns)."""
    return rows.reshape(-1, rows.shape[-1]).t() @ columns.reshape(-1, columns.shape[-1])
