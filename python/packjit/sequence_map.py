"""Where the sequences of a batch begin and end, without PyTorch. packjit.torch has a SequenceMap of its own."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any, Optional

from packjit import _c
from packjit._library import check, library
from packjit._tensors import DTYPES, tensor_of
from packjit.device import Device, handle_of
from packjit.errors import BadArgument, Uncopyable, WrongType, choice

FORMS = {"position_indices": _c.POSITION_INDICES, "seq_idx": _c.SEQ_IDX, "cu_seqlens": _c.CU_SEQLENS, "rows": _c.ROWS}
STORAGES = {"positions": _c.POSITIONS, "positions16": _c.POSITIONS16, "bits": _c.BITS, "offsets": _c.OFFSETS}
_INDEX_DTYPES = {name: DTYPES[name] for name in ("int16", "uint16", "int32", "int64")}


class SequenceMap(Uncopyable):
    """The boundaries of one batch in memory of the device, for all layers to share.

    Made from boundaries in host memory (`from_position_indices`, `from_seq_idx`, `from_cu_seqlens`, `rows`), or empty
    by `on_device`, to be built from boundaries in memory of the device by `build`. Any thread may run operators with
    it while none builds or checks it. `stream` is a CUstream as a number, 0 the default stream.

    Attributes: device, form, batch, seqlen, n_sequences (slots: how many states there are), max_sequences, max_seqlen.
    """

    def __init__(self, device: Device, handle: int, form: str):
        """Takes ownership of a packjit_map. Use the class methods instead."""
        self.device, self.handle, self.form = device, handle, form
        # The device stays until the map is gone: the finalizer's arguments hold it.
        self._release = weakref.finalize(self, _release_map, handle, device)
        self._release.atexit = False
        info = _c.packjit_map_info()
        check(library().packjit_map_get_info(handle, ctypes.byref(info)))
        self.batch, self.seqlen, self.n_sequences = int(info.batch), int(info.seqlen), int(info.n_sequences)
        self.max_sequences, self.max_seqlen = int(info.max_sequences), int(info.max_seqlen)

    @classmethod
    def from_position_indices(cls, device: Device, position_indices: Any, **limits) -> SequenceMap:
        """`position_indices`: (batch, seqlen) in host memory, int16, uint16, int32 or int64: 0, 1, 2... anew in each
        sequence, negative is padding. `limits`: max_sequences and max_seqlen, both or neither, by which kernels are
        chosen, the same for every batch; storage; stream. Raises BadArgument that names the token which breaks a
        rule."""
        batch, seqlen = _two(position_indices, "position_indices")
        return cls.from_host(device, "position_indices", position_indices, batch, seqlen, **limits)

    @classmethod
    def from_seq_idx(cls, device: Device, seq_idx: Any, **limits) -> SequenceMap:
        """`seq_idx`: (batch, seqlen) in host memory: equal neighbours are one sequence, negative is padding."""
        batch, seqlen = _two(seq_idx, "seq_idx")
        return cls.from_host(device, "seq_idx", seq_idx, batch, seqlen, **limits)

    @classmethod
    def from_cu_seqlens(cls, device: Device, cu_seqlens: Any, batch: int, seqlen: int, **limits) -> SequenceMap:
        """`cu_seqlens`: (n_sequences + 1) offsets into the flattened rows, in host memory, int32 or int64."""
        return cls.from_host(device, "cu_seqlens", cu_seqlens, batch, seqlen, **limits)

    @classmethod
    def rows(cls, device: Device, batch: int, seqlen: int, **limits) -> SequenceMap:
        """Each row is one sequence."""
        return cls.from_host(device, "rows", None, batch, seqlen, **limits)

    @classmethod
    def from_host(cls, device: Device, form: str, boundaries: Any, batch: int, seqlen: int, *, max_sequences: int = 0,
                  max_seqlen: int = 0, storage: str = "positions", stream: int = 0) -> SequenceMap:
        """From dense boundaries in host memory (None for rows), which are read before the call returns."""
        options = _options(form, storage, batch, seqlen, max_sequences, max_seqlen)
        tensor = None if boundaries is None else tensor_of(boundaries, form, True)
        handle = ctypes.c_void_p()
        check(library().packjit_map_from_host(handle_of(device), stream, ctypes.byref(options), _reference(tensor),
                                              ctypes.byref(handle)))
        return cls(device, handle.value, form)

    @classmethod
    def on_device(cls, device: Device, form: str, index_dtype: str, batch: int, seqlen: int, max_sequences: int,
                  max_seqlen: int, *, storage: str = "positions", stream: int = 0) -> SequenceMap:
        """Room for a map that the device builds from boundaries of `index_dtype` ("int32", "int64"...), of at most
        max_sequences sequences of at most max_seqlen tokens. Compiles a kernel the first time."""
        options = _options(form, storage, batch, seqlen, max_sequences, max_seqlen)
        handle = ctypes.c_void_p()
        dtype = choice("SequenceMap: index_dtype", index_dtype, _INDEX_DTYPES)
        check(library().packjit_map_create(handle_of(device), stream, ctypes.byref(options), dtype,
                                           ctypes.byref(handle)))
        return cls(device, handle.value, form)

    def build(self, boundaries: Any, stream: int = 0) -> None:
        """Launches the building from dense boundaries in memory of the device (None for rows), of the form and dtype
        that the map was made for. Waits for nothing, and can be captured in a CUDA graph."""
        tensor = None if boundaries is None else tensor_of(boundaries, self.form, self.device.is_host)
        check(library().packjit_map_build(self.handle, stream, _reference(tensor)))

    def check(self, stream: int = 0) -> None:
        """Waits for `stream`. Raises BadArgument where boundaries broke a rule since the last check; until then every
        row counts as padding."""
        check(library().packjit_map_check(self.handle, stream))


def _release_map(handle: int, device: Device) -> None:
    library().packjit_map_release(handle)


def _reference(tensor: Optional[_c.packjit_tensor]):
    return None if tensor is None else ctypes.byref(tensor)


def _two(boundaries: Any, form: str):
    if not hasattr(boundaries, "shape"):
        raise WrongType(f"{form}: it is a {type(boundaries).__name__}, expected a tensor (batch, seqlen)")
    shape = tuple(boundaries.shape)
    if len(shape) != 2:
        raise BadArgument(f"{form}: its shape is {shape}, expected (batch, seqlen)")
    return shape


def _options(form, storage, batch, seqlen, max_sequences, max_seqlen) -> _c.packjit_map_options:
    return _c.packjit_map_options(form=choice("SequenceMap: form", form, FORMS),
                                  storage=choice("SequenceMap: storage", storage, STORAGES), batch=batch, seqlen=seqlen,
                                  max_sequences=max_sequences, max_seqlen=max_seqlen)
