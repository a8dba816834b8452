"""The SequenceMap of the PyTorch layer: boundaries of a batch, shared by all layers, usable under torch.compile.

Operators of torch.library take tensors and numbers. So a map goes through them as `handle`, a tensor () int64 on the
CPU that holds an id; ids lead to live maps. Nothing of a batch is specialised or guarded that way. Whatever keeps the
handle, or another tensor on its memory, keeps the map: autograd does, for the backward. An update gives the map another
handle and forgets the old id, so that a backward cannot take the new boundaries for those of its forward.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
import weakref
from typing import Dict, Optional, Tuple

import torch
from torch import Tensor

import packjit
from packjit.errors import BadArgument, PackjitError, WrongType

_ids = itertools.count(1)
_live: Dict[int, weakref.ref] = {}
_devices: Dict[Optional[int], packjit.Device] = {}
_devices_lock = threading.Lock()


def device_of(device: torch.device) -> packjit.Device:
    """The packjit device for tensors on `device`: host execution for the CPU, the primary context of a GPU. Opened once
    a process."""
    if device.type not in ("cpu", "cuda"):
        raise BadArgument(f"packjit runs on CUDA GPUs and, slowly, on the CPU; the tensors are on {device}")
    key = None if device.type == "cpu" else (torch.cuda.current_device() if device.index is None else device.index)
    found = _devices.get(key)
    if found is None:
        with _devices_lock:
            found = _devices.get(key)
            if found is None:
                found = packjit.Device.host() if key is None else packjit.Device.gpu(key)
                _devices[key] = found
    return found


def stream_of(device: torch.device) -> int:
    """PyTorch's current stream as a CUstream; 0 on the CPU."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


def live_map(handle: Tensor) -> packjit.SequenceMap:
    """The map behind the handle of a SequenceMap. Raises BadArgument where it is gone."""
    try:
        return handle._packjit_map
    except AttributeError:  # a copy of the tensor that was made
        return map_of_id(handle)


def map_of_id(handle: Tensor) -> packjit.SequenceMap:
    """The map behind a handle tensor that may be an old one, or a copy, as graphs and saved-tensor hooks keep them.
    Raises BadArgument where the map is gone or was updated since."""
    found = _live.get(int(handle))
    seq_map = None if found is None else found()
    if seq_map is None:
        raise BadArgument("the SequenceMap of this call is gone, or was updated between a forward and its backward, "
                          "which needs the old boundaries; keep it until the backward has run and update it after "
                          "that, or make a map for each batch")
    return seq_map


def refuse_changed(handle: Tensor, version: int, saved: Tensor) -> None:
    """Raises where the map was built anew since the handle had `version`, or `saved`, the handle among saved tensors,
    is another map's. autograd sees that by itself in saved tensors, but not in those that hooks keep (save_on_cpu) or
    make again (torch.utils.checkpoint). What is traced has no id to read; its operators look their map up."""
    if handle._version != version or (saved is not handle and type(saved) is Tensor and int(saved) != int(handle)):
        raise PackjitError("the SequenceMap was updated between this forward and its backward, which needs the old "
                           "boundaries; update it after the backward, or make a map for each batch")


class _Id(ctypes.c_int64):
    """Memory of a handle, which PyTorch keeps with the tensor's storage; it keeps the map."""

    seq_map: packjit.SequenceMap


def _handle_of(seq_map: packjit.SequenceMap) -> Tensor:
    key = next(_ids)
    _live[key] = weakref.ref(seq_map, lambda _: _live.pop(key, None))
    memory = _Id(key)
    memory.seq_map = seq_map
    with torch.inference_mode(False):  # a map made for evaluation may be kept, and serve training
        flat = torch.frombuffer(memory, dtype=torch.int64)
        # Not a view: autograd and torch.compile treat those otherwise.
        handle = torch.empty((), dtype=torch.int64, device="cpu").set_(flat.untyped_storage(), 0, (), ())
    handle._packjit_map = seq_map  # found without reading the id
    return handle


@torch.library.custom_op("packjit::sequence_map", mutates_args=(), schema=(
    "(Tensor? boundaries, str form, SymInt batch, SymInt seqlen, SymInt max_sequences, SymInt max_seqlen, "
    "Device device) -> Tensor"))
def _create(boundaries: Optional[Tensor], form: str, batch: int, seqlen: int, max_sequences: int, max_seqlen: int,
            device: torch.device) -> Tensor:
    where = device_of(device)
    with torch.no_grad():
        if max_sequences and boundaries is not None:
            boundaries = boundaries.contiguous()
            dtype = str(boundaries.dtype).rpartition(".")[2]
            seq_map = packjit.SequenceMap.on_device(where, form, dtype, batch, seqlen, max_sequences, max_seqlen,
                                                    stream=stream_of(device))
            seq_map.build(boundaries, stream_of(device))
        else:
            if boundaries is not None:
                boundaries = boundaries.cpu().contiguous()
            seq_map = packjit.SequenceMap.from_host(where, form, boundaries, batch, seqlen, stream=stream_of(device))
    return _handle_of(seq_map)


@_create.register_fake
def _(boundaries, form, batch, seqlen, max_sequences, max_seqlen, device):
    return torch.empty((), dtype=torch.int64, device="cpu")


# Declared to mutate the handle, so that torch.compile keeps its place among the operators that use the map, and
# autograd refuses a backward whose map was built anew since the forward.
@torch.library.custom_op("packjit::update_sequence_map", mutates_args=("handle",),
                         schema="(Tensor(a!) handle, Tensor boundaries) -> Tensor")
def _update(handle: Tensor, boundaries: Tensor) -> Tensor:
    seq_map = map_of_id(handle)
    seq_map.build(boundaries.contiguous(), stream_of(boundaries.device))
    _live.pop(int(handle), None)
    return _handle_of(seq_map)


@_update.register_fake
def _(handle, boundaries):
    return torch.empty((), dtype=torch.int64, device="cpu")


class SequenceMap:
    """Where the sequences of one batch begin and end; make one for each batch, or one for all with `update`.

    With max_sequences and max_seqlen (of any batch to come) it is built on the device without waiting for it, states
    have max_sequences slots, and kernels are the same for every batch. Without, boundaries on a GPU are read back
    once, which waits for the GPU; a new mix of lengths may then choose other kernels, which are compiled first.

    Attributes: handle (() int64 on the CPU, what operators take), batch, seqlen, device.
    """

    def __init__(self, form: str, boundaries: Optional[Tensor], batch: int, seqlen: int,
                 max_sequences: Optional[int], max_seqlen: Optional[int], device: torch.device):
        """Use the static methods."""
        if (max_sequences is None) != (max_seqlen is None):
            raise BadArgument(f"SequenceMap: max_sequences is {max_sequences} and max_seqlen is {max_seqlen}; give "
                              "both, or neither where the boundaries may be read back")
        if max_sequences is not None and (max_sequences < 1 or max_seqlen < 1):
            raise BadArgument(f"SequenceMap: max_sequences is {max_sequences} and max_seqlen is {max_seqlen}, expected "
                              "1 or more")
        self.form, self.batch, self.seqlen, self.device = form, batch, seqlen, device
        self.max_sequences, self.max_seqlen = max_sequences, max_seqlen
        self._fill(boundaries)

    def _fill(self, boundaries: Optional[Tensor]) -> None:
        self.handle = torch.ops.packjit.sequence_map(boundaries, self.form, self.batch, self.seqlen,
                                                     self.max_sequences or 0, self.max_seqlen or 0, self.device)

    @staticmethod
    def from_position_indices(position_indices: Tensor, max_sequences: Optional[int] = None,
                              max_seqlen: Optional[int] = None) -> SequenceMap:
        """`position_indices`: (batch, seqlen) int16, uint16, int32 or int64 on the model's device: 0, 1, 2... anew in
        each sequence, negative is padding. Raises BadArgument; with limits, only `check` does."""
        batch, seqlen = _shape(position_indices, "position_indices", "batch", "seqlen")
        return SequenceMap("position_indices", position_indices, batch, seqlen, max_sequences, max_seqlen,
                           position_indices.device)

    @staticmethod
    def from_seq_idx(seq_idx: Tensor, max_sequences: Optional[int] = None,
                     max_seqlen: Optional[int] = None) -> SequenceMap:
        """`seq_idx`: (batch, seqlen), dtypes as above: equal neighbours are one sequence, negative is padding."""
        batch, seqlen = _shape(seq_idx, "seq_idx", "batch", "seqlen")
        return SequenceMap("seq_idx", seq_idx, batch, seqlen, max_sequences, max_seqlen, seq_idx.device)

    @staticmethod
    def from_cu_seqlens(cu_seqlens: Tensor, batch: int, seqlen: int, max_sequences: Optional[int] = None,
                        max_seqlen: Optional[int] = None) -> SequenceMap:
        """`cu_seqlens`: (n_sequences + 1) int32 or int64: offsets into the flattened rows, from 0 to batch * seqlen,
        one at every row's start."""
        _shape(cu_seqlens, "cu_seqlens", "n_sequences + 1")
        return SequenceMap("cu_seqlens", cu_seqlens, batch, seqlen, max_sequences, max_seqlen, cu_seqlens.device)

    @staticmethod
    def rows(batch: int, seqlen: int, device: torch.device) -> SequenceMap:
        """Each row is one sequence."""
        return SequenceMap("rows", None, batch, seqlen, None, None, torch.device(device))

    @property
    def n_sequences(self) -> int:
        """Slots: how many states there are. Inside torch.compile only of maps with limits and of rows."""
        if self.form == "rows":
            return self.batch
        return live_map(self.handle).n_sequences if self.max_sequences is None else self.max_sequences

    def update(self, boundaries: Tensor) -> None:
        """Builds the map anew for the next batch, from boundaries of the same form, shape and dtype.

        With limits the memory stays, nothing waits, and the building can be captured in a CUDA graph; a backward that
        still needs the old boundaries is refused: by autograd ("modified by an inplace operation"), and with a
        PackjitError where hooks keep or make again what autograd saves."""
        if self.form == "rows":
            raise BadArgument("SequenceMap.update: a map of rows has no boundaries")
        if not isinstance(boundaries, Tensor):
            raise WrongType(f"SequenceMap.update: {self.form} is a {type(boundaries).__name__}, expected a tensor")
        if self.form != "cu_seqlens" and tuple(boundaries.shape) != (self.batch, self.seqlen):
            raise BadArgument(f"SequenceMap.update: {self.form} has shape {tuple(boundaries.shape)}, the map is for "
                              f"{(self.batch, self.seqlen)}")
        if self.max_sequences is None:
            self._fill(boundaries)
        else:
            self.handle = torch.ops.packjit.update_sequence_map(self.handle, boundaries)

    def check(self) -> None:
        """Waits for the current stream. Raises BadArgument where boundaries broke a rule or a limit since the last
        check; until then every row counts as padding. Maps without limits were checked when they were made."""
        live_map(self.handle).check(stream_of(self.device))

    def __repr__(self) -> str:
        return (f"SequenceMap({self.form}, batch={self.batch}, seqlen={self.seqlen}, "
                f"max_sequences={self.max_sequences}, max_seqlen={self.max_seqlen}, device={self.device})")


def _shape(boundaries: Tensor, form: str, *dimensions: str) -> Tuple[int, ...]:
    expected = f"({', '.join(dimensions)})"
    if not isinstance(boundaries, Tensor):
        raise WrongType(f"{form}: it is a {type(boundaries).__name__}, expected a tensor {expected}")
    if boundaries.dim() != len(dimensions):
        raise BadArgument(f"{form}: its shape is {tuple(boundaries.shape)}, expected {expected}")
    return boundaries.shape


