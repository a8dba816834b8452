"""The operators in torch.library: packjit::conv1d_pack, packjit::ssm_pack and their backwards.

Each has kernels for CUDA and the CPU (host execution), a fake kernel, an autograd formula and an autocast rule; none
mutates what it is given. `packjit.torch.conv1d_pack` and `ssm_pack` are how they are called. Their formulas stand in
docs/design.md, section 2.

Every operator exists twice: in torch.library for whatever traces or intercepts (torch.compile, torch.export, dispatch
and functorch modes, tensor subclasses), and as a torch.autograd.Function over the same code for plain eager calls,
where going through the dispatcher to Python twice would cost the host more than the call itself.

The forward keeps for the backward its inputs and, where they are asked for, checkpoints; never copies.
"""

from __future__ import annotations

import contextlib
from typing import Any, List, Optional, Tuple

import torch
from torch import Tensor

import packjit
from packjit import _c
from packjit._library import library
from packjit.errors import BadArgument, PackjitError
from packjit.torch import calls
from packjit.torch.sequence_map import map_of_id, refuse_changed

# --- what the C calls need, and their outputs -------------------------------------------------------------------------

_empty_like = torch.empty_like


def _dense_like(tensor: Optional[Tensor], dtype: Optional[torch.dtype] = None) -> Optional[Tensor]:
    """Memory for the gradient of a parameter or a state. Those of activations are in the activation's layout where
    that is dense, and in one of their own otherwise."""
    return None if tensor is None else torch.empty_like(tensor, dtype=dtype, memory_format=torch.contiguous_format)


def _weights_for(x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tuple[Tensor, Optional[Tensor]]:
    """weight and bias in one dtype: fp32 where one of them is, which takes any activations, else x's."""
    if weight.dtype is x.dtype and (bias is None or bias.dtype is x.dtype):
        return weight, bias
    dtype = torch.float32 if torch.float32 in (weight.dtype, None if bias is None else bias.dtype) else x.dtype
    return (weight if weight.dtype is dtype else real(weight, "weight").to(dtype),
            bias if bias is None or bias.dtype is dtype else real(bias, "bias").to(dtype))


def real(tensor: Tensor, name: str) -> Tensor:
    if tensor.is_complex():
        raise BadArgument(f"conv1d_pack: {name} is {tensor.dtype}, expected real numbers")
    return tensor


def conv_forward(seq_map: packjit.SequenceMap, x: Tensor, weight: Tensor, bias: Optional[Tensor],
                 initial_states: Optional[Tensor], silu: bool, final_states: bool) -> Tuple[Tensor, Optional[Tensor]]:
    """(out, final states if they are asked for)"""
    weight, bias = _weights_for(x, weight, bias)
    out = _empty_like(x)
    states = None
    if final_states:
        states = x.new_empty((seq_map.n_sequences, x.shape[-1], weight.shape[-1] - 1))
    calls.run(calls.CONV1D_PACK, _c.FORWARD, silu, seq_map, (x, weight, bias, initial_states, out, states))
    return out, states


def conv_backward(seq_map: packjit.SequenceMap, x: Tensor, weight: Tensor, bias: Optional[Tensor],
                  initial_states: Optional[Tensor], dout: Tensor, dfinal_states: Optional[Tensor],
                  silu: bool, dx: Optional[Tensor] = None) -> Tuple[Tensor, Tensor, Optional[Tensor], Optional[Tensor]]:
    """(dx, dweight fp32, dbias fp32, dinitial_states). dx is written where the caller gives it, of any strides."""
    weight, bias = _weights_for(x, weight, bias)
    gradients = (torch.empty_like(x) if dx is None else dx, _dense_like(weight, torch.float32),
                 _dense_like(bias, torch.float32), _dense_like(initial_states))
    calls.run(calls.CONV1D_PACK, _c.BACKWARD, silu, seq_map,
              (x, weight, bias, initial_states, dout, dfinal_states, *gradients))
    return gradients


def _checkpoints_shape(u: Tensor, A: Tensor) -> Tuple[int, int, int]:
    """As the C header has it. What the scan does not have, d_state or dimensions, is refused by the call."""
    if u.dim() != 3 or A.dim() != 2:
        return 1, 1, 1
    interval = library().packjit_checkpoint_interval(int(A.shape[-1])) or 1
    return u.shape[0] * u.shape[1] // interval + 1, u.shape[2], A.shape[-1]


def ssm_forward(seq_map: packjit.SequenceMap, inputs: Tuple[Optional[Tensor], ...], softplus: bool, final_states: bool,
                checkpoints: bool) -> Tuple[Tensor, Optional[Tensor], Optional[Tensor]]:
    """(out, final states and checkpoints if they are asked for). `inputs`: u, delta, A, B, C, D, z, delta_bias,
    initial_states, handed on as they are: taking them apart and together costs as much as a check."""
    u, A = inputs[0], inputs[2]
    out = _empty_like(u)
    states = stored = None
    if final_states:
        states = A.new_empty((seq_map.n_sequences, u.shape[-1], A.shape[-1]))
    if checkpoints:
        stored = A.new_empty(_checkpoints_shape(u, A))
    calls.run(calls.SSM_PACK, _c.FORWARD, softplus, seq_map, (*inputs, out, states, stored))
    return out, states, stored


def _bc_like(tensor: Tensor) -> Tensor:
    """Memory for the gradient of B or C: of a parameter where it is constant, (dim, d_state)."""
    return _dense_like(tensor) if tensor.dim() == 2 else torch.empty_like(tensor)


def ssm_backward(seq_map: packjit.SequenceMap, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor,
                 D: Optional[Tensor], z: Optional[Tensor], delta_bias: Optional[Tensor],
                 initial_states: Optional[Tensor], dout: Tensor, dfinal_states: Optional[Tensor],
                 checkpoints: Optional[Tensor], softplus: bool, dB: Optional[Tensor] = None,
                 dC: Optional[Tensor] = None, dz: Optional[Tensor] = None) -> Tuple[Optional[Tensor], ...]:
    """(du, ddelta, dA, dB, dC, dD, dz, ddelta_bias, dinitial_states), None for what there is none of. dB, dC and dz are
    written where the caller gives them, all three and of any strides."""
    if dB is None:
        dB, dC, dz = _bc_like(B), _bc_like(C), None if z is None else torch.empty_like(z)
    gradients = (torch.empty_like(u), torch.empty_like(delta), _dense_like(A), dB, dC, _dense_like(D), dz,
                 _dense_like(delta_bias), _dense_like(initial_states))
    calls.run(calls.SSM_PACK, _c.BACKWARD, softplus, seq_map,
              (u, delta, A, B, C, D, z, delta_bias, initial_states, dout, dfinal_states, checkpoints, *gradients))
    return gradients


# --- eager autograd ---------------------------------------------------------------------------------------------------

# Of autograd.grad(is_grads_batched=True), in PyTorch that has it: a tensor whose type says nothing.
_is_batched = getattr(torch._C._functorch, "is_legacy_batchedtensor", lambda tensor: False)


def is_plain(tensors: Tuple[Optional[Tensor], ...]) -> bool:
    """Whether nothing wants to see the operators of a call on these tensors."""
    if _dispatch_modes() or _functorch_level() is not None or _tracing() is not None:
        return False
    return _PLAIN.issuperset(map(type, tensors))


_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter, type(None)))
_dispatch_modes, _functorch_level = torch._C._len_torch_dispatch_stack, torch._C._functorch.peek_interpreter_stack
_tracing = torch._C._get_tracing_state  # of torch.jit.trace


def any_requires_grad(tensors: Tuple[Optional[Tensor], ...]) -> bool:
    """Whether autograd has to know of a call on these tensors, where it is on."""
    for tensor in tensors:  # in training the first
        if tensor is not None and tensor.requires_grad:
            return True
    return False


def needs_operators(*douts: Optional[Tensor]) -> bool:
    """Whether a backward has to go through the registered operators."""
    return (torch.is_grad_enabled() or not is_plain(douts)
            or any([dout is not None and _is_batched(dout) for dout in douts]))


# A quick answer for any type of device, where this PyTorch has it.
autocast_may_be_on = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)


def without_autocast(device_type: str):
    """A context in which autocast is off; where it is already, entering it costs next to nothing."""
    return torch.autocast(device_type, enabled=False) if autocast_may_be_on() else contextlib.nullcontext()


def no_second_derivative(name: str) -> PackjitError:
    return PackjitError(f"{name} has no gradient of its own: double backward is not supported; ask autograd for "
                        "gradients without create_graph=True")


def first_derivative(name: str):
    """For the backward of a torch.autograd.Function: gradients that shall have gradients (create_graph=True) are
    refused, since theirs would lack what goes through the function, without a word; and autocast changes no dtype."""
    def decorate(backward):
        def first(ctx, *douts):
            if torch.is_grad_enabled():
                raise no_second_derivative(name)
            with without_autocast(douts[0].device.type):
                return backward(ctx, *douts)
        return first
    return decorate


class EagerConv1dPack(torch.autograd.Function):
    """packjit::conv1d_pack for plain tensors; apply() gives out, or (out, final states)."""

    @staticmethod
    def forward(ctx, seq_map, handle, x, weight, bias, initial_states, silu, final_states):
        out, states = conv_forward(seq_map, x, weight, bias, initial_states, silu, final_states)
        ctx.save_for_backward(x, weight, bias, initial_states, handle)
        ctx.call = seq_map, silu, handle, handle._version
        if not final_states:
            return out
        ctx.set_materialize_grads(False)
        return out, states

    @staticmethod
    def backward(ctx, dout, dfinal_states=None):
        *inputs, handle = ctx.saved_tensors
        seq_map, silu, own_handle, version = ctx.call
        refuse_changed(own_handle, version, handle)
        if dout is None:
            dout = torch.zeros_like(inputs[0])
        if needs_operators(dout, dfinal_states):
            gradients = op_conv_backward(*inputs, dout, dfinal_states, handle, silu)
        else:
            gradients = conv_backward(seq_map, *inputs, dout, dfinal_states, silu)
        return (None, None, *gradients, None, None)


class EagerSsmPack(torch.autograd.Function):
    """packjit::ssm_pack for plain tensors; apply() gives out, or (out, final states)."""

    @staticmethod
    def forward(ctx, seq_map, handle, u, delta, A, B, C, D, z, delta_bias, initial_states, softplus, final_states,
                checkpoints):
        inputs = (u, delta, A, B, C, D, z, delta_bias, initial_states)
        out, states, stored = ssm_forward(seq_map, inputs, softplus, final_states, checkpoints)
        ctx.save_for_backward(*inputs, stored, handle)
        ctx.call = seq_map, softplus, handle, handle._version
        if not final_states:
            return out
        ctx.set_materialize_grads(False)
        return out, states

    @staticmethod
    def backward(ctx, dout, dfinal_states=None):
        *inputs, stored, handle = ctx.saved_tensors
        seq_map, softplus, own_handle, version = ctx.call
        refuse_changed(own_handle, version, handle)
        if dout is None:
            dout = torch.zeros_like(inputs[0])
        if needs_operators(dout, dfinal_states):
            gradients = op_ssm_backward(*inputs, dout, dfinal_states, stored, handle, softplus)
        else:
            gradients = ssm_backward(seq_map, *inputs, dout, dfinal_states, stored, softplus)
        return (None, None, *gradients, None, None, None)


# --- torch.library ----------------------------------------------------------------------------------------------------
# Schemas have a fixed number of outputs: what a call does not have is an empty tensor there.

_library = torch.library.Library("packjit", "FRAGMENT")
_TAGS = (torch.Tag.pt2_compliant_tag, getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order))
_SSM_SCHEMA = ("Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? z, Tensor? delta_bias, "
               "Tensor? initial_states")


def _define(name: str, schema: str, kernel, fake) -> None:
    _library.define(name + schema, tags=_TAGS)
    _library.impl(name, kernel, "CPU")
    _library.impl(name, kernel, "CUDA")
    torch.library.register_fake(f"packjit::{name}", fake, lib=_library)


def _filled(tensors, like: Tensor) -> Tuple[Tensor, ...]:
    """Empty tensors for None: each its own, since outputs may not be the same tensor."""
    return tuple([like.new_empty((0,)) if tensor is None else tensor for tensor in tensors])


def _conv_kernel(x, weight, bias, initial_states, seq_map, silu, final_states, n_sequences):
    return _filled(conv_forward(map_of_id(seq_map), x, weight, bias, initial_states, silu, final_states), x)


def _conv_fake(x, weight, bias, initial_states, seq_map, silu, final_states, n_sequences):
    states = x.new_empty((n_sequences, x.shape[-1], weight.shape[-1] - 1)) if final_states else None
    return _filled((torch.empty_like(x), states), x)


def _conv_backward_kernel(x, weight, bias, initial_states, dout, dfinal_states, seq_map, silu):
    return _filled(conv_backward(map_of_id(seq_map), x, weight, bias, initial_states, dout, dfinal_states, silu), x)


def _conv_backward_fake(x, weight, bias, initial_states, dout, dfinal_states, seq_map, silu):
    return _filled((torch.empty_like(x), _dense_like(weight, torch.float32), _dense_like(bias, torch.float32),
                    _dense_like(initial_states)), x)


def _ssm_kernel(u, delta, A, B, C, D, z, delta_bias, initial_states, seq_map, softplus, final_states, n_sequences,
                checkpoints):
    inputs = u, delta, A, B, C, D, z, delta_bias, initial_states
    return _filled(ssm_forward(map_of_id(seq_map), inputs, softplus, final_states, checkpoints), u)


def _ssm_fake(u, delta, A, B, C, D, z, delta_bias, initial_states, seq_map, softplus, final_states, n_sequences,
              checkpoints):
    states = A.new_empty((n_sequences, u.shape[-1], A.shape[-1])) if final_states else None
    stored = A.new_empty(_checkpoints_shape(u, A)) if checkpoints else None
    return _filled((torch.empty_like(u), states, stored), u)


def _ssm_backward_kernel(u, delta, A, B, C, D, z, delta_bias, initial_states, dout, dfinal_states, checkpoints, seq_map,
                         softplus):
    return _filled(ssm_backward(map_of_id(seq_map), u, delta, A, B, C, D, z, delta_bias, initial_states, dout,
                                dfinal_states, checkpoints, softplus), u)


def _ssm_backward_fake(u, delta, A, B, C, D, z, delta_bias, initial_states, dout, dfinal_states, checkpoints, seq_map,
                       softplus):
    du, ddelta, dz = [None if tensor is None else torch.empty_like(tensor) for tensor in (u, delta, z)]
    dB, dC = _bc_like(B), _bc_like(C)
    return _filled([du, ddelta, _dense_like(A), dB, dC, _dense_like(D), dz, _dense_like(delta_bias),
                    _dense_like(initial_states)], u)


_define("conv1d_pack", "(Tensor x, Tensor weight, Tensor? bias, Tensor? initial_states, Tensor seq_map, bool silu, "
        "bool final_states, SymInt n_sequences) -> (Tensor, Tensor)", _conv_kernel, _conv_fake)
_define("conv1d_pack_backward", "(Tensor x, Tensor weight, Tensor? bias, Tensor? initial_states, Tensor dout, "
        "Tensor? dfinal_states, Tensor seq_map, bool silu) -> (Tensor, Tensor, Tensor, Tensor)",
        _conv_backward_kernel, _conv_backward_fake)
_define("ssm_pack", f"({_SSM_SCHEMA}, Tensor seq_map, bool softplus, bool final_states, SymInt n_sequences, "
        "bool checkpoints) -> (Tensor, Tensor, Tensor)", _ssm_kernel, _ssm_fake)
_define("ssm_pack_backward", f"({_SSM_SCHEMA}, Tensor dout, Tensor? dfinal_states, Tensor? checkpoints, "
        f"Tensor seq_map, bool softplus) -> ({', '.join(['Tensor'] * 9)})", _ssm_backward_kernel, _ssm_backward_fake)


def _present(gradients, inputs) -> List[Optional[Tensor]]:
    return [None if tensor is None else gradient for gradient, tensor in zip(gradients, inputs)]


def op_conv_backward(x, weight, bias, initial_states, dout, dfinal_states, handle, silu):
    gradients = torch.ops.packjit.conv1d_pack_backward(x, weight, bias, initial_states, dout, dfinal_states, handle,
                                                       silu)
    dx, dweight, dbias, dinitial_states = _present(gradients, (x, weight, bias, initial_states))
    # As parameters are: fp32 ones get the fp32 sums, unrounded.
    return dx, dweight.to(weight.dtype), None if bias is None else dbias.to(bias.dtype), dinitial_states


def op_ssm_backward(u, delta, A, B, C, D, z, delta_bias, initial_states, dout, dfinal_states, stored, handle,
                    softplus):
    inputs = (u, delta, A, B, C, D, z, delta_bias, initial_states)
    return _present(torch.ops.packjit.ssm_pack_backward(*inputs, dout, dfinal_states, stored, handle, softplus), inputs)


def _conv_setup(ctx, inputs, output):
    x, weight, bias, initial_states, seq_map, silu, final_states, _ = inputs
    ctx.save_for_backward(x, weight, bias, initial_states, seq_map)
    ctx.silu, ctx.final_states = silu, final_states
    ctx.map = seq_map, seq_map._version
    ctx.set_materialize_grads(False)


def _conv_formula(ctx, dout, dfinal_states):
    *inputs, seq_map = ctx.saved_tensors
    refuse_changed(*ctx.map, seq_map)
    if dout is None:
        dout = torch.zeros_like(inputs[0])
    gradients = op_conv_backward(*inputs, dout, dfinal_states if ctx.final_states else None, seq_map, ctx.silu)
    return (*gradients, None, None, None, None)


def _ssm_setup(ctx, inputs, output):
    *tensors, seq_map, softplus, final_states, _, checkpoints = inputs
    ctx.save_for_backward(*tensors, output[2] if checkpoints else None, seq_map)
    ctx.softplus, ctx.final_states = softplus, final_states
    ctx.map = seq_map, seq_map._version
    if checkpoints:
        ctx.mark_non_differentiable(output[2])
    ctx.set_materialize_grads(False)


def _ssm_formula(ctx, dout, dfinal_states, _):
    *inputs, stored, seq_map = ctx.saved_tensors
    refuse_changed(*ctx.map, seq_map)
    if dout is None:
        dout = torch.zeros_like(inputs[0])
    gradients = op_ssm_backward(*inputs, dout, dfinal_states if ctx.final_states else None, stored, seq_map,
                                ctx.softplus)
    return (*gradients, None, None, None, None, None)


def _refuse_double_backward(name: str):
    def formula(ctx, *_: Any):
        raise no_second_derivative(f"packjit::{name}")
    return formula


torch.library.register_autograd("packjit::conv1d_pack", _conv_formula, setup_context=_conv_setup, lib=_library)
torch.library.register_autograd("packjit::ssm_pack", _ssm_formula, setup_context=_ssm_setup, lib=_library)
for _name in ("conv1d_pack_backward", "ssm_pack_backward"):
    torch.library.register_autograd(f"packjit::{_name}", _refuse_double_backward(_name), lib=_library)


# Autocast: activations go to autocast's dtype; parameters stay, since the operators take fp32 ones beside half
# activations. The numbers are the places of activations among the arguments.
_AUTOCAST = {"conv1d_pack": {0, 3}, "ssm_pack": {0, 1, 3, 4, 6}}


def to_autocast_dtype(tensor: Optional[Tensor], device_type: str) -> Optional[Tensor]:
    """An fp32, fp16 or bf16 activation in autocast's dtype for this type of device."""
    if tensor is None or tensor.dtype not in calls.DTYPES or tensor.is_complex() or tensor.dim() == 2:
        return tensor  # of two dimensions are constant B and C
    return tensor.to(torch.get_autocast_dtype(device_type))


def _autocast_kernel(name: str, activations, device_type: str, key):
    def kernel(*arguments):
        cast = [to_autocast_dtype(argument, device_type) if place in activations else argument
                for place, argument in enumerate(arguments)]
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)):
            return getattr(torch.ops.packjit, name)(*cast)
    return kernel


for _name, _places in _AUTOCAST.items():
    _library.impl(_name, _autocast_kernel(_name, _places, "cuda", torch._C.DispatchKey.AutocastCUDA), "AutocastCUDA")
    _library.impl(_name, _autocast_kernel(_name, _places, "cpu", torch._C.DispatchKey.AutocastCPU), "AutocastCPU")
