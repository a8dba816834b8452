"""Calls of the C interface with PyTorch tensors, as cheap as Python allows.

What a call says of its tensors (shapes, strides, dtypes) repeats from layer to layer and step to step. So the C
structs of a call are kept, and a call of which the like was seen before only fills in addresses.
"""

from __future__ import annotations

import ctypes
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

import packjit
from packjit import _c
from packjit._library import library, raise_last
from packjit.errors import BadArgument
from packjit.torch.sequence_map import device_of, stream_of

DTYPES = {torch.float32: _c.FP32, torch.float16: _c.FP16, torch.bfloat16: _c.BF16, torch.complex64: _c.COMPLEX64}
_FUNCTIONS = {  # operator and direction: C function and struct
    (_c.CONV1D_PACK, _c.FORWARD): ("packjit_conv1d_forward", _c.packjit_conv1d_forward_tensors),
    (_c.CONV1D_PACK, _c.BACKWARD): ("packjit_conv1d_backward", _c.packjit_conv1d_backward_tensors),
    (_c.SSM_PACK, _c.FORWARD): ("packjit_ssm_forward", _c.packjit_ssm_forward_tensors),
    (_c.SSM_PACK, _c.BACKWARD): ("packjit_ssm_backward", _c.packjit_ssm_backward_tensors),
}
_SWITCH = (_c.OFF, _c.ON)


class Operator:
    """What the calls of one operator have in common: the names of its tensors in the C structs, inputs first, and how
    its options follow from them."""

    def __init__(self, op: int, inputs: str, outputs: str, gradients_in: str, dense: str, size: Tuple[str, str],
                 optional: str, switches: str, constant: str = ""):
        """`gradients_in`: what the backward takes besides the inputs. `size`: an option and the tensor whose last
        dimension it is. `optional`: inputs that are an option by their name. `switches`: the options that no input
        tells. `constant`: inputs that may be (dim, d_state), the same for all tokens, which is an option too."""
        self.op = op
        self.inputs = tuple(inputs.split())
        self.names = {_c.FORWARD: (*self.inputs, *outputs.split()),
                      _c.BACKWARD: (*self.inputs, *gradients_in.split(), *["d" + name for name in self.inputs])}
        self.dense = frozenset(dense.split())
        self.size, self.optional, self.switches = size, tuple(optional.split()), tuple(switches.split())
        self.constant = tuple(constant.split())

    def takes_dense(self, name: str, tensor: Tensor) -> bool:
        """Parameters and states; activations have any strides."""
        return name in self.dense or (name in self.constant and tensor.dim() == 2)

    def options(self, switches: Tuple[bool, ...], tensors: Sequence[Optional[Tensor]]) -> Tuple:
        """The operator, then pairs of a member of packjit_operator_options and its value."""
        given = dict(zip(self.inputs, tensors))
        weight = given.get("weight")
        fp32_weights = weight is not None and weight.dtype is torch.float32 and tensors[0].dtype is not torch.float32
        return (self.op, ("dtype", DTYPES.get(tensors[0].dtype, 0)), (self.size[0], given[self.size[1]].shape[-1]),
                *[(name, _SWITCH[given[name] is not None]) for name in self.optional],
                *[(name, _SWITCH[value]) for name, value in zip(self.switches, switches)],
                *[("constant_" + name, _c.ON) for name in self.constant if given[name].dim() == 2],
                *([("complex_A", _c.ON)] if given[self.size[1]].is_complex() else []),
                *([("fp32_weights", _c.ON)] if fp32_weights else []))


CONV1D_PACK = Operator(
    _c.CONV1D_PACK, "x weight bias initial_states", "out final_states", "dout dfinal_states",
    dense="weight bias initial_states dfinal_states", size=("conv_width", "weight"), optional="bias initial_states",
    switches="silu final_states")
SSM_PACK = Operator(
    _c.SSM_PACK, "u delta A B C D z delta_bias initial_states", "out final_states checkpoints",
    "dout dfinal_states checkpoints", dense="A D delta_bias initial_states dfinal_states", size=("d_state", "A"),
    optional="D z delta_bias initial_states", switches="softplus final_states checkpoints", constant="B C")

_MOST_KINDS = 512  # kinds of calls remembered; a map without limits makes every batch a kind of its own

_operators: Dict[Tuple, int] = {}
_kinds: Dict[Tuple, List[Call]] = {}


class Call:
    """The structs of one call. Whoever runs it has taken it out of the stack of its kind, so it has one user at a
    time."""

    __slots__ = ("function", "operator", "struct", "address", "data", "device", "bytes", "workspace",
                 "workspace_address")

    def __init__(self, options: Tuple, direction: int, seq_map: packjit.SequenceMap, names: Sequence[str],
                 tensors: Sequence[Optional[Tensor]]):
        function, struct = _FUNCTIONS[options[0], direction]
        self.device = tensors[0].device
        self.function = getattr(library(), function)
        self.operator = _operator(self.device, options)
        # One for each name, None where the call has no such tensor.
        self.data = [None if tensor is None else _described(tensor, name) for name, tensor in zip(names, tensors)]
        self.struct = struct(**{name: ctypes.pointer(data) for name, data in zip(names, self.data) if data is not None})
        self.address = ctypes.addressof(self.struct)
        # Scratch memory is a tensor of PyTorch's: it is in PyTorch's accounts, other operators use it in between, each
        # stream has its own, and graphs keep it in their pool. The library's own would hold what the largest backward
        # needs, a good part of the activations' size, for as long as the process runs. Host execution has its own.
        self.bytes = 0
        self.workspace = self.workspace_address = None
        if self.device.type == "cuda":
            self.bytes = _workspace_bytes(self.operator, direction, seq_map, dict(zip(names, tensors)))
            self.workspace = _c.packjit_workspace(bytes=self.bytes)
            self.workspace_address = ctypes.addressof(self.workspace)

    def run(self, seq_map: packjit.SequenceMap, tensors: Sequence[Optional[Tensor]]) -> None:
        for data, tensor in zip(self.data, tensors):
            if data is not None:
                data.data = tensor.data_ptr()
        stream = None
        if self.workspace is not None:
            stream = _stream(self.device.index)
            if self.bytes:
                scratch = torch.empty(self.bytes, dtype=torch.uint8, device=self.device)
                self.workspace.data = scratch.data_ptr()
        status = self.function(self.operator, stream, seq_map.handle, self.address, self.workspace_address)
        if status:
            raise_last(status)


# The current stream as a number without an object around it, where this PyTorch has that.
_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None) or (
    lambda index: stream_of(torch.device("cuda", index)))


def run(operator: Operator, direction: int, switches: Tuple[bool, ...], seq_map: packjit.SequenceMap,
        tensors: Tuple[Optional[Tensor], ...], outputs: Tuple[Optional[Tensor], ...], layout: Tuple = ()) -> None:
    """Runs one direction of the operator on the tensors' device and current stream.

    `switches` are those of `operator.switches`, the other options follow from the tensors; shapes, strides and dtypes
    of outputs have to follow from both and the map, or else from `layout`. Parameters and states are taken dense, as
    `operator.takes_dense` says; those that are not are copied. Raises PackjitError.
    """
    key = (operator.op, direction, switches, layout, seq_map.max_sequences, seq_map.max_seqlen, tensors[0].get_device(),
           *[None if tensor is None else (tensor.shape, tensor.stride(), tensor.dtype) for tensor in tensors])
    calls = _kinds.get(key)
    if calls is None:
        names = operator.names[direction]
        _check_devices(names, tensors, seq_map)
        dense = tuple([tensor.contiguous() if tensor is not None and operator.takes_dense(name, tensor) else tensor
                       for name, tensor in zip(names, tensors)])
        if any([a is not b for a, b in zip(dense, tensors)]):
            return run(operator, direction, switches, seq_map, dense, outputs, layout)
        if len(_kinds) >= _MOST_KINDS:
            _kinds.clear()
        calls = _kinds.setdefault(key, [])
    everything = tensors + outputs
    try:
        call = calls.pop()
    except IndexError:
        call = Call(operator.options(switches, tensors), direction, seq_map, operator.names[direction], everything)
    call.run(seq_map, everything)
    calls.append(call)


def _check_devices(names: Sequence[str], tensors: Sequence[Optional[Tensor]], seq_map: packjit.SequenceMap) -> None:
    device = tensors[0].device
    for name, tensor in zip(names, tensors):
        if tensor is not None and tensor.device != device:
            raise BadArgument(f"tensor {name} is on {tensor.device}, {names[0]} on {device}: all of them have to be on "
                              "one device")
    if seq_map.device is not device_of(device):
        raise BadArgument(f"the SequenceMap is for {seq_map.device}, the tensors are on {device}")


def _operator(device: torch.device, options: Tuple) -> int:
    """A packjit_operator, made once for options as Operator.options() gives them. It lives as long as the process."""
    key = (device, options)
    found = _operators.get(key)
    if found is None:
        handle = ctypes.c_void_p()
        struct = _c.packjit_operator_options(op=options[0], **dict(options[1:]))
        status = library().packjit_operator_create(device_of(device).handle, ctypes.byref(struct), ctypes.byref(handle))
        if status:
            raise_last(status)
        # Of two threads the first wins; the other's operator is released.
        found = _operators.setdefault(key, handle.value)
        if found != handle.value:
            library().packjit_operator_release(handle)
    return found


def _described(tensor: Tensor, name: str) -> _c.packjit_tensor:
    if tensor.dtype not in DTYPES:
        raise BadArgument(f"tensor {name}: its dtype is {tensor.dtype}, expected float32, float16 or bfloat16")
    if tensor.dim() < 1 or tensor.dim() > 4:
        raise BadArgument(f"tensor {name}: it has {tensor.dim()} dimensions, expected 1 to 4")
    described = _c.packjit_tensor(dtype=DTYPES[tensor.dtype], rank=tensor.dim())
    described.shape[:tensor.dim()] = tensor.shape
    described.stride[:tensor.dim()] = tensor.stride()
    return described


def _workspace_bytes(operator: int, direction: int, seq_map: packjit.SequenceMap, tensors: Dict[str, Any]) -> int:
    """What any layout of such a call needs. 0 for shapes that the call itself is going to refuse."""
    main = tensors["u"] if "u" in tensors else tensors["x"]
    groups = max([tensors[name].shape[2] for name in "BC" if name in tensors and tensors[name].dim() == 4], default=1)
    if main.dim() != 3 or 0 in main.shape or groups > main.shape[2]:
        return 0
    found, most = ctypes.c_size_t(), 0
    for layout in (_c.TOKEN_MAJOR, _c.CHANNEL_MAJOR, _c.STRIDED):
        shape = _c.packjit_shape(batch=seq_map.batch, seqlen=seq_map.seqlen, dim=main.shape[2], groups=groups,
                                 max_sequences=max(seq_map.max_sequences, 1), max_seqlen=max(seq_map.max_seqlen, 1),
                                 layout=layout)
        status = library().packjit_operator_workspace_bytes(operator, direction, ctypes.byref(shape),
                                                            ctypes.byref(found))
        if status:
            raise_last(status)
        most = max(most, found.value)
    return most
