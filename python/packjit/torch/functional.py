"""conv1d_pack and ssm_pack on PyTorch tensors, and drop-ins for the official packages' functions."""

from __future__ import annotations

import functools
from typing import Optional, Tuple, Union

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.compiler import is_compiling, is_dynamo_compiling

from packjit.errors import BadArgument, PackjitError, WrongType
from packjit.torch import ops
from packjit.torch.arguments import refuse_others, takes_tensors
from packjit.torch.sequence_map import SequenceMap, live_map

_FP32 = torch.float32
_is_grad_enabled = torch.is_grad_enabled
Output = Union[Tensor, Tuple[Tensor, Tensor]]


def conv1d_pack(x: Tensor, weight: Tensor, bias: Optional[Tensor] = None, *, seq_map: SequenceMap,
                activation: Optional[str] = "silu", initial_states: Optional[Tensor] = None,
                return_final_states: bool = False) -> Output:
    """Causal depthwise convolution of packed sequences: y[t] = act(bias + sum over k of weight[W-1-k] * x[t-k]), where
    no tap leaves the token's sequence. docs/design.md, section 2, has the rules.

    x: (batch, seqlen, dim) fp32, fp16 or bf16, any strides. weight: (dim, W), W from 1 to 16, and bias: (dim), in x's
    dtype or in fp32 (both, where one of them is), else they are rounded to x's; their gradients are fp32 sums, rounded
    once to the parameters' dtype. activation: "silu" (or "swish") or None. initial_states: (n_sequences, dim, W - 1),
    the inputs before each sequence, oldest first.

    Gives out (batch, seqlen, dim), in x's layout where that is dense; with return_final_states (out, final_states),
    where the latter are as initial_states. Both have gradients. Raises PackjitError (BadArgument is a ValueError too).
    """
    try:
        if not isinstance(seq_map, SequenceMap):
            _refuse_map(seq_map)
        eager = not is_dynamo_compiling()  # which costs nothing; export is seen as a mode
        if eager and forward_ad._current_level >= 0:
            _refuse_tangents(x, weight, bias, initial_states)
        if activation not in (None, "silu", "swish"):
            raise BadArgument(f"conv1d_pack: activation is {activation!r}, expected None, 'silu' or 'swish'")
        silu = activation is not None
        if initial_states is not None and initial_states.dtype != x.dtype:
            initial_states = ops.real(initial_states, "initial_states").to(x.dtype)
        if eager and ops.is_plain((x, weight, bias, initial_states)):
            if ops.autocast_may_be_on() and torch.is_autocast_enabled(x.device.type):
                x = ops.to_autocast_dtype(x, x.device.type)
                initial_states = ops.to_autocast_dtype(initial_states, x.device.type)
            handle = seq_map.handle
            if _is_grad_enabled() and ops.any_requires_grad((x, weight, bias, initial_states)):
                return ops.EagerConv1dPack.apply(live_map(handle), handle, x, weight, bias, initial_states, silu,
                                                 return_final_states)
            out, states = ops.conv_forward(live_map(handle), x, weight, bias, initial_states, silu, return_final_states)
            return (out, states) if return_final_states else out
        out, states = torch.ops.packjit.conv1d_pack(x, weight, bias, initial_states, seq_map.handle, silu,
                                                    return_final_states,
                                                    seq_map.n_sequences if return_final_states else 0)
        return (out, states) if return_final_states else out
    except Exception:
        refuse_others(conv1d_pack, locals())
        raise


def ssm_pack(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Optional[Tensor] = None,
             z: Optional[Tensor] = None, delta_bias: Optional[Tensor] = None, *, seq_map: SequenceMap,
             delta_softplus: bool = True, initial_states: Optional[Tensor] = None, return_final_states: bool = False,
             checkpoints: bool = False) -> Output:
    """Selective scan of packed sequences: h[t] = exp(dt*A) * h[t-1] + dt*B[t]*u[t], out[t] = (C[t]*h[t] + D*u[t]) *
    silu(z[t]), dt = softplus(delta + delta_bias); h begins anew in every sequence. docs/design.md, section 2.

    u, delta, z: (batch, seqlen, dim) and B, C: (batch, seqlen, groups, d_state), all of one dtype, fp32, fp16 or bf16,
    any strides. A: (dim, d_state), d_state from 1 to 512, D and delta_bias: (dim), initial_states: (n_sequences, dim,
    d_state): cast to fp32 where they are not, with gradients in their own dtype. checkpoints: the forward stores
    states for the backward (8 bytes an element of u at d_state 16), which is then faster by more than that costs.

    B or C of (dim, d_state) is the same for all tokens, a parameter like A. With a complex A, states and such B and C
    are complex64, B and C of tokens are (batch, seqlen, groups, 2 * d_state), real and imaginary part of each state
    side by side, and out[t] has 2 * Re(C[t]*h[t]). Both have kernels of their own, which are not fast, and no
    checkpoints.

    Gives out (batch, seqlen, dim), in u's layout where that is dense; with return_final_states (out, final_states),
    where the latter are (n_sequences, dim, d_state) fp32. Both have gradients. Raises PackjitError (BadArgument is a
    ValueError too).
    """
    try:
        if not isinstance(seq_map, SequenceMap):
            _refuse_map(seq_map)
        eager = not is_dynamo_compiling()
        if eager and forward_ad._current_level >= 0:
            _refuse_tangents(u, delta, A, B, C, D, z, delta_bias, initial_states)
        if not (A.dtype is _FP32 and (D is None or D.dtype is _FP32) and initial_states is None
                and (delta_bias is None or delta_bias.dtype is _FP32) and B.dim() == 4 == C.dim()):
            # Complex tensors may be conjugates that PyTorch computes later; the dispatcher sees to that.
            eager = eager and not A.is_complex()
            A, B, C, D, delta_bias, initial_states = _cast(A, B, C, D, delta_bias, initial_states)
        inputs = u, delta, A, B, C, D, z, delta_bias, initial_states
        if eager and ops.is_plain(inputs):
            if ops.autocast_may_be_on() and torch.is_autocast_enabled(u.device.type):
                u, delta, B, C, z = [ops.to_autocast_dtype(tensor, u.device.type) for tensor in (u, delta, B, C, z)]
                inputs = u, delta, A, B, C, D, z, delta_bias, initial_states
            handle = seq_map.handle
            if _is_grad_enabled() and ops.any_requires_grad(inputs):
                return ops.EagerSsmPack.apply(live_map(handle), handle, *inputs, delta_softplus, return_final_states,
                                              checkpoints)
            out, states, _ = ops.ssm_forward(live_map(handle), inputs, delta_softplus, return_final_states, False)
            return (out, states) if return_final_states else out
        out, states, _ = torch.ops.packjit.ssm_pack(*inputs, seq_map.handle, delta_softplus, return_final_states,
                                                    seq_map.n_sequences if return_final_states else 0, checkpoints)
        return (out, states) if return_final_states else out
    except Exception:
        refuse_others(ssm_pack, locals())
        raise


@takes_tensors
def selective_scan_fn(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Optional[Tensor] = None,
                      z: Optional[Tensor] = None, delta_bias: Optional[Tensor] = None, delta_softplus: bool = False,
                      return_last_state: bool = False, *, position_indices: Optional[Tensor] = None,
                      cu_seqlens: Optional[Tensor] = None, seq_idx: Optional[Tensor] = None,
                      seq_map: Optional[SequenceMap] = None) -> Output:
    """As mamba_ssm's selective_scan_fn, with boundaries besides; the formula is that of ssm_pack.

    u, delta, z: (batch, dim, seqlen). A: (dim, d_state), real or complex. B, C: (dim, d_state), or (batch, d_state,
    seqlen) or (batch, groups, d_state, seqlen); with a complex A complex, or with 2 * seqlen, real and imaginary part
    of each token side by side. D, delta_bias: (dim). Dtypes as for ssm_pack: u, delta, z, B and C have one dtype.
    Without boundaries each row is one sequence; of position_indices (batch, seqlen), cu_seqlens, seq_idx (batch,
    seqlen) and seq_map at most one is given, and all but the last are read back to the host in every call: layers
    should share a SequenceMap.

    Gives out (batch, dim, seqlen), in u's layout where that is dense; with return_last_state (out, last_state), the
    latter (batch, dim, d_state) fp32 or complex64, or (n_sequences, dim, d_state) with boundaries. Unlike the official
    function's, last_state has a gradient.
    """
    for name, tensor in (("u", u), ("delta", delta), ("z", z)):
        if tensor is not None and tensor.dim() != 3:
            raise BadArgument(f"selective_scan_fn: {name} has shape {tuple(tensor.shape)}, expected (batch, dim, "
                              "seqlen)")
    seq_map = _map_of(u.shape[0], u.shape[2], u.device, position_indices, cu_seqlens, seq_idx, seq_map)
    B, C = [_token_major_bc(tensor, name, A.is_complex()) for tensor, name in ((B, "B"), (C, "C"))]
    result = ssm_pack(u.transpose(1, 2), delta.transpose(1, 2), A, B, C, D, None if z is None else z.transpose(1, 2),
                      delta_bias, seq_map=seq_map, delta_softplus=delta_softplus,
                      return_final_states=return_last_state)
    if return_last_state:
        return result[0].transpose(1, 2), result[1]
    return result.transpose(1, 2)


@takes_tensors
def causal_conv1d_fn(x: Tensor, weight: Tensor, bias: Optional[Tensor] = None, seq_idx: Optional[Tensor] = None,
                     initial_states: Optional[Tensor] = None, return_final_states: bool = False,
                     final_states_out: Optional[Tensor] = None, activation: Optional[str] = None, *,
                     position_indices: Optional[Tensor] = None, cu_seqlens: Optional[Tensor] = None,
                     seq_map: Optional[SequenceMap] = None) -> Output:
    """As causal_conv1d's causal_conv1d_fn, with boundaries besides; the formula is that of conv1d_pack.

    x: (batch, dim, seqlen), any strides. weight: (dim, width). bias: (dim). seq_idx: (batch, seqlen) int32, negative is
    padding. initial_states: (batch, dim, width - 1). final_states_out: as these, written in place, without a gradient;
    it is what is returned as final states where those have no gradient, otherwise they are a tensor of their own.
    activation: None, "silu" or "swish". Dtypes as for conv1d_pack. Without boundaries each row is one sequence. As
    there, with seq_idx initial_states are for the sequences that rows begin with, and final states are excluded; with
    position_indices, cu_seqlens or seq_map, states are (n_sequences, dim, width - 1), one for each sequence.

    Gives out (batch, dim, seqlen), in x's layout where that is dense; with return_final_states (out, final_states).
    Unlike the official function: a sequence of seq_idx is a stretch of equal neighbours, so an id that comes again
    begins another sequence; widths from 1 to 16; any layout for any combination.
    """
    if activation not in (None, "silu", "swish"):
        raise NotImplementedError(f"causal_conv1d_fn: activation is {activation!r}, expected None, 'silu' or 'swish'")
    if x.dim() != 3:
        raise BadArgument(f"causal_conv1d_fn: x has shape {tuple(x.shape)}, expected (batch, dim, seqlen)")
    if seq_idx is not None and return_final_states:
        raise BadArgument("causal_conv1d_fn: seq_idx excludes return_final_states, as in the official function; give "
                          "position_indices, cu_seqlens or seq_map for states of each sequence")
    seq_map = _map_of(x.shape[0], x.shape[2], x.device, position_indices, cu_seqlens, seq_idx, seq_map)
    if seq_idx is not None and initial_states is not None:
        expected = (x.shape[0], x.shape[1], weight.shape[-1] - 1)
        if tuple(initial_states.shape) != expected:
            raise BadArgument(f"causal_conv1d_fn: initial_states has shape {tuple(initial_states.shape)}, expected "
                              f"{expected}: with seq_idx one for each row, (batch, dim, width - 1)")
        if is_compiling():
            raise BadArgument("causal_conv1d_fn: inside torch.compile seq_idx does not tell how many sequences there "
                              "are; give states of all of them and a seq_map with limits")
        initial_states = _states_of_rows(initial_states, seq_idx, seq_map.n_sequences)
    result = conv1d_pack(x.transpose(1, 2), weight, bias, seq_map=seq_map, activation=activation,
                         initial_states=initial_states, return_final_states=return_final_states)
    if not return_final_states:
        return result.transpose(1, 2)
    out, states = result
    if final_states_out is not None:
        if final_states_out.shape != states.shape:
            raise BadArgument(f"causal_conv1d_fn: final_states_out has shape {tuple(final_states_out.shape)}, expected "
                              f"{tuple(states.shape)}")
        with torch.no_grad():  # the caller's memory gets numbers, and no part in the graph
            final_states_out.copy_(states)
        if not states.requires_grad:
            states = final_states_out
    return out.transpose(1, 2), states


def _states_of_rows(states: Tensor, seq_idx: Tensor, n_sequences: int) -> Tensor:
    """States of all sequences: of those that rows begin with the row's, of the others zero. A row that begins with
    padding uses its own nowhere."""
    ids = seq_idx.to(torch.int64)
    if seq_idx.dtype is torch.uint16:
        ids = ids.masked_fill(ids == 65535, -1)
    begins = ids >= 0
    begins[:, 1:] &= ids[:, 1:] != ids[:, :-1]
    sequences = begins.sum(1)
    slots = torch.where(begins[:, 0], sequences.cumsum(0) - sequences, n_sequences)
    room = states.new_zeros(n_sequences + 1, *states.shape[1:])  # the last one is for rows that begin with padding
    return room.index_copy(0, slots, states)[:n_sequences]


def _token_major_bc(tensor: Tensor, name: str, complex_A: bool) -> Tensor:
    """(batch, [groups,] d_state, seqlen) as (batch, seqlen, groups, d_state); what is constant, (dim, d_state), as it
    is. With a complex A (batch, [groups,] d_state, 2 * seqlen) as (batch, seqlen, groups, 2 * d_state), which is a
    copy."""
    if tensor.dim() == 2:
        return tensor
    if tensor.dim() not in (3, 4):
        raise BadArgument(f"selective_scan_fn: {name} has shape {tuple(tensor.shape)}, expected (dim, d_state), "
                          "(batch, d_state, seqlen) or (batch, groups, d_state, seqlen)")
    if tensor.dim() == 3:
        tensor = tensor.unsqueeze(1)
    if not complex_A:
        return tensor.permute(0, 3, 1, 2)
    return tensor.unflatten(3, (-1, 2)).permute(0, 3, 1, 2, 4).flatten(3)


def _cast(A: Tensor, B: Tensor, C: Tensor, D: Optional[Tensor], delta_bias: Optional[Tensor],
          initial_states: Optional[Tensor]):
    """Parameters and states in the dtype that A asks for: complex64 or fp32; D and delta_bias in fp32."""
    dtype = torch.complex64 if A.is_complex() else _FP32
    for tensor, name in ((B, "B"), (C, "C"), (initial_states, "initial_states")):
        if tensor is not None and tensor.is_complex() and (dtype is torch.float32 or tensor.dim() == 4):
            raise BadArgument(f"{name} of shape {tuple(tensor.shape)} is complex: that takes a complex A, and B and "
                              "C of tokens as real numbers, real and imaginary part side by side")
    return (A.to(dtype), B.to(dtype) if B.dim() == 2 else B, C.to(dtype) if C.dim() == 2 else C,
            *[tensor if tensor is None or tensor.is_complex() else tensor.to(_FP32) for tensor in (D, delta_bias)],
            None if initial_states is None else initial_states.to(dtype))


def _refuse_tangents(*tensors: Optional[Tensor]) -> None:
    """Within a level of forward mode: without this the dispatcher would drop tangents without a word."""
    if any([tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors]):
        raise PackjitError("packjit has no forward-mode gradients (jvp): take reverse mode")


def _refuse_map(found) -> None:
    raise WrongType(f"seq_map is a {type(found).__name__}, expected a packjit.torch.SequenceMap, made once a batch "
                      "from its boundaries")


def _map_of(batch: int, seqlen: int, device: torch.device, position_indices: Optional[Tensor],
            cu_seqlens: Optional[Tensor], seq_idx: Optional[Tensor], seq_map: Optional[SequenceMap]) -> SequenceMap:
    given = sum([boundaries is not None for boundaries in (position_indices, cu_seqlens, seq_idx, seq_map)])
    if given > 1:
        raise BadArgument("of position_indices, cu_seqlens, seq_idx and seq_map at most one can be given")
    if seq_map is not None:
        return seq_map
    if position_indices is not None:
        return SequenceMap.from_position_indices(position_indices)
    if cu_seqlens is not None:
        return SequenceMap.from_cu_seqlens(cu_seqlens, batch, seqlen)
    if seq_idx is not None:
        return SequenceMap.from_seq_idx(seq_idx)
    if is_compiling():
        return SequenceMap.rows(batch, seqlen, device)
    if torch._C._len_torch_dispatch_stack():  # FakeTensorMode and the like: their tensors are not to be kept
        return SequenceMap.rows(batch, seqlen, device)
    return _rows(batch, seqlen, device)


@functools.lru_cache(maxsize=128)
def _rows(batch: int, seqlen: int, device: torch.device) -> SequenceMap:
    """Used on any stream later on, so its copy to the device is waited for here, once."""
    seq_map = SequenceMap.rows(batch, seqlen, device)
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    return seq_map
