"""Calls of the C interface with PyTorch tensors, as cheap as Python allows.

What a call says of its tensors (shapes, strides, dtypes) repeats from layer to layer and step to step. So the C structs of
a call are kept, and a call of which the like was seen before only fills in addresses.
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

DTYPES = {torch.float32: _c.FP32, torch.float16: _c.FP16, torch.bfloat16: _c.BF16}
_FUNCTIONS = {  # operator and direction: C function and struct
    (_c.CONV1D_PACK, _c.FORWARD): ("packjit_conv1d_forward", _c.packjit_conv1d_forward_tensors),
    (_c.CONV1D_PACK, _c.BACKWARD): ("packjit_conv1d_backward", _c.packjit_conv1d_backward_tensors),
    (_c.SSM_PACK, _c.FORWARD): ("packjit_ssm_forward", _c.packjit_ssm_forward_tensors),
    (_c.SSM_PACK, _c.BACKWARD): ("packjit_ssm_backward", _c.packjit_ssm_backward_tensors),
}
_MOST_KINDS = 512  # kinds of calls remembered; a map without limits makes every batch a kind of its own

_operators: Dict[Tuple, int] = {}
_kinds: Dict[Tuple, List["Call"]] = {}


class Call:
    """The structs of one call. Whoever runs it has taken it out of the stack of its kind, so it has one user at a time."""

    __slots__ = ("function", "operator", "tensors", "data", "struct", "workspace", "bytes", "device")

    def __init__(self, operator_options: Tuple, direction: int, seq_map: packjit.SequenceMap, device: torch.device,
                 names: Sequence[str], tensors: Sequence[Optional[Tensor]]):
        function, struct = _FUNCTIONS[operator_options[0], direction]
        self.function = getattr(library(), function)
        self.operator = _operator(device, operator_options)
        self.device = device
        self.data = [_described(tensor, name) for name, tensor in zip(names, tensors) if tensor is not None]
        given = [name for name, tensor in zip(names, tensors) if tensor is not None]
        self.tensors = struct(**{name: ctypes.pointer(data) for name, data in zip(given, self.data)})
        self.struct = ctypes.addressof(self.tensors)
        # Scratch memory is a tensor of PyTorch's: it is in PyTorch's accounts, other operators use it in between, each
        # stream has its own, and graphs keep it in their pool. The library's own would hold what the largest backward
        # needs, a good part of the activations' size, for as long as the process runs. Host execution has its own.
        self.bytes = 0 if device.type == "cpu" else _workspace_bytes(self.operator, direction, seq_map,
                                                                     dict(zip(names, tensors)))
        self.workspace = None if device.type == "cpu" else _c.packjit_workspace(bytes=self.bytes)

    def run(self, seq_map: packjit.SequenceMap, tensors: Sequence[Optional[Tensor]]) -> None:
        for data, tensor in zip(self.data, [tensor for tensor in tensors if tensor is not None]):
            data.data = tensor.data_ptr()
        if self.workspace is None:
            status = self.function(self.operator, None, seq_map.handle, self.struct, None)
        else:
            if self.bytes:
                scratch = torch.empty(self.bytes, dtype=torch.uint8, device=self.device)
                self.workspace.data = scratch.data_ptr()
            status = self.function(self.operator, _stream(self.device.index), seq_map.handle, self.struct,
                                   ctypes.addressof(self.workspace))
        if status:
            raise_last(status)


# The current stream as a number without an object around it, where this PyTorch has that.
_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None) or (
    lambda index: stream_of(torch.device("cuda", index)))


def run(options: Tuple, direction: int, seq_map: packjit.SequenceMap, names: Sequence[str],
        tensors: Sequence[Optional[Tensor]], outputs: Sequence[Optional[Tensor]]) -> None:
    """Runs one direction of the operator with `options` (see `_operator`) on the tensors' device and current stream.

    `names` are those of `tensors` and `outputs` in the C struct; shapes, strides and dtypes of outputs follow from those
    of `tensors`, the options and the map. Raises PackjitError.
    """
    device = tensors[0].device
    key = (options, direction, seq_map.max_sequences, seq_map.max_seqlen, device,
           *[None if tensor is None else (tensor.shape, tensor.stride(), tensor.dtype) for tensor in tensors])
    calls = _kinds.get(key)
    if calls is None:
        for name, tensor in zip(names, tensors):
            if tensor is not None and tensor.device != device:
                raise BadArgument(f"tensor {name} is on {tensor.device}, {names[0]} on {device}: all of them have to be on "
                                  "one device")
        if seq_map.device is not device_of(device):
            raise BadArgument(f"the SequenceMap is for {seq_map.device}, the tensors are on {device}")
        if len(_kinds) >= _MOST_KINDS:
            _kinds.clear()
        calls = _kinds.setdefault(key, [])
    everything = [*tensors, *outputs]
    try:
        call = calls.pop()
    except IndexError:
        call = Call(options, direction, seq_map, device, names, everything)
    call.run(seq_map, everything)
    calls.append(call)


def _operator(device: torch.device, options: Tuple) -> int:
    """A packjit_operator, made once. `options`: the operator, then pairs of a member of packjit_operator_options and
    its value. It lives as long as the process, as layers' options do."""
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
    groups = tensors["B"].shape[2] if "B" in tensors and tensors["B"].dim() == 4 else 1
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
