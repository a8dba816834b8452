"""Calls of the C interface with PyTorch tensors, as cheap as Python allows: the library reads the tensors itself."""

from __future__ import annotations

from typing import Optional, Tuple

import torch
from torch import Tensor

import packjit
from packjit import _c
from packjit._library import python_call, raise_last
from packjit.errors import BadArgument
from packjit.torch import exchange
from packjit.torch.exchange import INTERRUPTIONS
from packjit.torch.sequence_map import device_of

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.complex64)


class Operator:
    """What the calls of one operator have in common: its tensors in the order of the C structs, inputs first."""

    def __init__(self, op: int, inputs: str, outputs: str, gradients_in: str, dense: str, constant: str = ""):
        """`gradients_in`: what the backward takes besides the inputs. `constant`: inputs that may be (dim, d_state),
        the same for all tokens."""
        self.op = op
        inputs = inputs.split()
        self.names = {_c.FORWARD: (*inputs, *outputs.split()),
                      _c.BACKWARD: (*inputs, *gradients_in.split(), *["d" + name for name in inputs])}
        self.dense, self.constant = frozenset(dense.split()), frozenset(constant.split())

    def takes_dense(self, name: str, tensor: Tensor) -> bool:
        """Parameters and states; activations have any strides."""
        return name in self.dense or (name in self.constant and tensor.dim() == 2)


CONV1D_PACK = Operator(_c.CONV1D_PACK, "x weight bias initial_states", "out final_states", "dout dfinal_states",
                       dense="weight bias initial_states dfinal_states")
SSM_PACK = Operator(_c.SSM_PACK, "u delta A B C D z delta_bias initial_states", "out final_states checkpoints",
                    "dout dfinal_states checkpoints", dense="A D delta_bias initial_states dfinal_states",
                    constant="B C")


def run(operator: Operator, direction: int, fused: bool, seq_map: packjit.SequenceMap,
        tensors: Tuple[Optional[Tensor], ...], any_strides: bool = False) -> None:
    """Runs one direction of the operator on the tensors' device and current stream.

    `tensors`: as `operator.names` has them, outputs included; the operator's options follow from them. `fused`:
    softplus of the scan, SiLU of the convolution. Parameters and states are taken dense; those that are not are copied,
    and so are views whose numbers are not those in memory. `any_strides`: there are none of these. Raises PackjitError.
    """
    try:
        status = python_call()(exchange.TABLE, operator.op, direction, bool(fused), any_strides, seq_map.handle,
                               *tensors)
    except Exception:  # PyTorch's, of a tensor that has no memory to describe
        _refuse_unusable(operator.names[direction], tensors, seq_map)
        raise
    if INTERRUPTIONS:
        raise INTERRUPTIONS.pop()
    if status:
        _refuse_unusable(operator.names[direction], tensors, seq_map)
        if any_strides or status != _c.BAD_ARGUMENT:
            raise_last(status)
        run(operator, direction, fused, seq_map, _in_memory(operator, direction, tensors), True)


def _in_memory(operator: Operator, direction: int, tensors: Tuple[Optional[Tensor], ...]):
    """The tensors, copied where memory does not have what a call takes. Only once a call was refused: looking costs."""
    def prepare(name: str, tensor: Optional[Tensor]) -> Optional[Tensor]:
        if tensor is None:
            return None
        tensor = tensor.resolve_neg()  # with PyTorch's negative bit numbers have the other sign in memory
        return tensor.contiguous() if operator.takes_dense(name, tensor) else tensor
    return tuple([prepare(name, tensor) for name, tensor in zip(operator.names[direction], tensors)])


def _refuse_unusable(names: Tuple[str, ...], tensors: Tuple[Optional[Tensor], ...],
                     seq_map: packjit.SequenceMap) -> None:
    """In PyTorch's words, what the library could only say of addresses and numbers."""
    device = tensors[0].device
    for name, tensor in zip(names, tensors):
        if tensor is None:
            continue
        if tensor.device != device:
            raise BadArgument(f"tensor {name} is on {tensor.device}, {names[0]} on {device}: all of them have to be on "
                              "one device")
        if tensor.dtype not in DTYPES:
            raise BadArgument(f"tensor {name}: its dtype is {tensor.dtype}, expected float32, float16 or bfloat16")
        if tensor.layout != torch.strided:
            raise BadArgument(f"tensor {name}: its layout is {tensor.layout}, expected strided; make it dense first")
    if seq_map.device is not device_of(device):
        raise BadArgument(f"the SequenceMap is for {seq_map.device}, the tensors are on {device}")
