"""From the lengths of documents to the steps of one rank, as NumPy arrays. docs/packing.md has methods, cuts and ranks.

    packer = Packer(lengths, pack_length=4096, rows=2, rank=rank, ranks=world_size)
    for epoch in range(3):
        for step in packer:
            batch, labels = step.gather(tokens), step.targets(tokens)  # (rows, pack_length) each
"""

from __future__ import annotations

import ctypes
import dataclasses
import threading
import weakref
from typing import Any, Dict, Iterator, Optional, Sequence

import numpy as np

from packjit import _c
from packjit._library import check, library
from packjit.errors import BadArgument, Uncopyable, choice, whole

METHODS = ("next-fit", "local-greedy", "ffd", "bfd", "length-groups", "balanced")
LOSS_UNITS = {"token": _c.LOSS_PER_TOKEN, "document": _c.LOSS_PER_DOCUMENT}
DIVISIONS = {"balanced": _c.DIVISION_BALANCED, "round-robin": _c.DIVISION_ROUND_ROBIN}
LAST_TOKENS = {"dropped": _c.LAST_TOKEN_IS_DROPPED, "counts": _c.LAST_TOKEN_COUNTS}
PIECE = np.dtype([(name, np.int64) for name, _ in _c.packjit_piece._fields_])


@dataclasses.dataclass(frozen=True)
class Step:
    """A batch of `rows` rows of `pack_length` token slots; every step has this shape, also one that is padding
    throughout, because other ranks have more. All arrays are copies.

    `pieces`, (n_pieces) of dtype PIECE: consecutive tokens of one document in one row. The index of a piece is its
    slot: the one that its states have with position_indices and seq_idx. Members, all int64: document; offset (of the
    first token in the document); length; row; start (of the first token in the row); more (1: a later step of this
    epoch has the document's next piece, and needs the final states); from_step and from_slot (the initial states are
    the final ones of this step of the epoch and this slot; both -1 where the document begins, and its states are zero).

    The others are (rows, pack_length), with -1 in padding unless said: position_indices, int32: from 0 in each piece;
    seq_idx, int32: the slot; document_ids, int64; document_offsets, int64: each token's place in its document;
    loss_weights, float32, 0 in padding: divide the weighted loss by the sum of the weights of all ranks and steps of an
    update. cu_seqlens, int64, has another shape: offsets of intervals in the flattened rows, where the padding of a row
    is an interval of its own, so that intervals are not slots, nor within the packer's limits.
    """

    epoch: int
    step: int  # within the epoch, from 0
    steps: int  # of the epoch
    tokens: int  # that are not padding
    max_seqlen: int  # tokens of the longest piece
    pieces: np.ndarray
    position_indices: np.ndarray
    seq_idx: np.ndarray
    cu_seqlens: np.ndarray
    document_ids: np.ndarray
    document_offsets: np.ndarray
    loss_weights: np.ndarray
    starts: np.ndarray = dataclasses.field(repr=False)  # (documents + 1): first token of each document; all tokens

    def gather(self, tokens: np.ndarray, padding: int = 0) -> np.ndarray:
        """The tokens of the step. `tokens`: (all tokens), one document after the other, in the order of the lengths; a
        memory map will do. Returns (rows, pack_length) of its dtype, with `padding` where no token is."""
        return self._taken(np.asanyarray(tokens), 0, self.document_ids >= 0, padding)

    def targets(self, tokens: np.ndarray, padding: int = -100) -> np.ndarray:
        """What each token is to predict: the next of its document, also across a cut. Returns (rows, pack_length)
        int64, with `padding` where there is none: in padding and at the last token of a document."""
        has_next = self.document_ids >= 0
        ends = self.pieces[self.pieces["more"] == 0]
        has_next[ends["row"], ends["start"] + ends["length"] - 1] = False
        return self._taken(np.asarray(tokens), 1, has_next, padding, np.dtype(np.int64))

    def _taken(self, tokens: np.ndarray, ahead: int, where: np.ndarray, padding: int,
               dtype: Optional[np.dtype] = None) -> np.ndarray:
        if tokens.shape != (self.starts[-1],):
            raise BadArgument(f"Step: tokens has shape {tokens.shape}, and the documents have {self.starts[-1]} "
                              "tokens: give all documents one after the other, with as many tokens as their lengths said")
        result = np.full(where.shape, padding, dtype or tokens.dtype)
        result[where] = tokens[self.starts[self.document_ids[where]] + self.document_offsets[where] + ahead]
        return result


class Packer(Uncopyable):
    """The steps of one rank, epoch after epoch, in every epoch with the documents in another order.

    Every rank makes one of the same documents and options with its own `rank`; they need not talk to each other, and
    have the same number of steps. Iterating gives the steps that are left in the current epoch, or those of the next
    where it is done. Any thread may use it.

    Attributes: max_sequences and max_seqlen, pieces of a step and tokens of a piece that no step of any epoch exceeds:
    limits for sequence maps of position_indices or seq_idx, so that the same kernels serve every step. cu_seqlens has
    an interval for the padding of a row besides: its limits are max_sequences + rows and pack_length.
    """

    def __init__(self, lengths: Sequence[int], pack_length: int, *, method: str = "local-greedy", rows: int = 1,
                 rank: int = 0, ranks: int = 1, seed: int = 0, breaks: Optional[Sequence[Sequence[int]]] = None,
                 cut: Optional[int] = None, cut_slack: Optional[int] = None, min_piece: int = 1, window: int = 256,
                 open_packs: int = 16, loss_unit: str = "token", last_token: str = "dropped",
                 division: str = "balanced"):
        """`lengths`: tokens of each document, (documents) integers. `pack_length`: tokens of a row. `method`: one of
        METHODS. `rows`: of a step. `breaks`: for each document increasing offsets in tokens at which it may be cut.
        `cut`: documents longer than this are cut, None at pack_length; `cut_slack`: a break counts only within so many
        tokens before the limit, None any break; `min_piece`: tokens of a piece of a cut document, at least. `window`
        and `open_packs`: of local-greedy. `loss_unit`: "token", each weighs 1, or "document", the tokens of one weigh 1
        together. `last_token` of a document, which has no next one to predict: "dropped" or "counts". `division` of the
        documents over ranks: "balanced", alike in tokens and longest sequences, or "round-robin", in turn, to see what
        that gains.

        Plans the first epoch: 10 million documents take some seconds, in every epoch. Raises BadArgument.
        """
        lengths = _integers(lengths, "lengths")
        documents = _c.packjit_documents(count=len(lengths), lengths=_pointer(lengths))
        if breaks is not None:
            breaks = [_integers(points, "breaks") for points in breaks]
            if len(breaks) != len(lengths):
                raise BadArgument(f"Packer: breaks of {len(breaks)} documents, but {len(lengths)} lengths; give each "
                                  "document a list, an empty one where it has none")
            offsets = np.zeros(len(lengths) + 1, np.int64)
            np.cumsum([len(points) for points in breaks], out=offsets[1:])
            # One more than there are: an empty array would have no address, which stands for no breaks at all.
            flat = np.concatenate([*breaks, np.zeros(1, np.int64)])
            documents.breaks, documents.break_offsets = _pointer(flat), _pointer(offsets)
        # In C 0 stands for the default and larger numbers wrap around; here either can only be a mistake.
        for least, values in ((1, {"pack_length": pack_length, "rows": rows, "ranks": ranks, "min_piece": min_piece,
                                   "window": window, "cut": 1 if cut is None else cut}),
                              (0, {"rank": rank, "seed": seed, "open_packs": open_packs, "cut_slack": cut_slack or 0})):
            for name, value in values.items():
                if not least <= whole(f"Packer: {name}", value) < 2**63:
                    raise BadArgument(f"Packer: {name} is {value}, expected at least {least} and less than 2**63")
        options = _c.packjit_packer_options(
            method=str(method).encode(), pack_length=pack_length, rows=rows, ranks=ranks, rank=rank, seed=seed,
            cut=cut or 0,
            cut_slack=0 if cut_slack is None else cut_slack or -1, min_piece=min_piece, window=window,
            open_packs=open_packs or -1, loss_unit=choice("Packer: loss_unit", loss_unit, LOSS_UNITS),
            last_token=choice("Packer: last_token", last_token, LAST_TOKENS),
            division=choice("Packer: division", division, DIVISIONS))
        c = library()
        handle = ctypes.c_void_p()
        check(c.packjit_packer_create(ctypes.byref(options), ctypes.byref(documents), ctypes.byref(handle)))
        self._handle = handle.value
        self._release = weakref.finalize(self, c.packjit_packer_release, self._handle)
        self._lock = threading.Lock()
        self._starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        info = self._filled(c.packjit_packer_get_info, _c.packjit_packer_info)
        self.max_sequences, self.max_seqlen = int(info.max_sequences), int(info.max_seqlen)

    @property
    def steps(self) -> int:
        """Of the current epoch, on every rank."""
        return int(self._filled(library().packjit_packer_get_info, _c.packjit_packer_info).steps)

    def next(self) -> Step:
        """The next step, of the next epoch where this one is done."""
        with self._lock:
            return self._next()

    def _next(self) -> Step:
        found = _c.packjit_step()
        check(library().packjit_packer_next(self._handle, ctypes.byref(found)))
        return self._copied(found)

    def __iter__(self) -> Iterator[Step]:
        step = self.next()
        while True:
            yield step
            with self._lock:  # another iterator may have taken the rest of the epoch
                found = _c.packjit_packer_position()
                check(library().packjit_packer_get_position(self._handle, ctypes.byref(found)))
                if found.epoch != step.epoch or found.step == step.steps:
                    return
                step = self._next()

    def state_dict(self) -> Dict[str, int]:
        """Where the packer stands, to keep with a checkpoint of the model, together with the final states of pieces
        that have `more` and whose next piece has not come yet. The same for all ranks."""
        found = self._filled(library().packjit_packer_get_position, _c.packjit_packer_position)
        return {"epoch": int(found.epoch), "step": int(found.step), "fingerprint": int(found.fingerprint)}

    def load_state_dict(self, state: Dict[str, int]) -> None:
        """Goes on from there, as if nothing had happened. Raises BadArgument for the state of other documents, options
        or numbers of ranks; the packer then stays where it was."""
        missing = {"epoch", "step", "fingerprint"} - set(state)
        if missing:
            raise BadArgument(f"Packer: the state lacks {', '.join(sorted(missing))}; expected what state_dict() gave")
        state = {name: whole(f"Packer: cannot resume: {name}", state[name])
                 for name in ("epoch", "step", "fingerprint")}
        for name, bits in (("epoch", 63), ("step", 63), ("fingerprint", 64)):  # ctypes would drop further bits
            if not 0 <= state[name] < 1 << bits:
                raise BadArgument(f"Packer: cannot resume: expected {name} to be from 0 to {(1 << bits) - 1}, found "
                                  f"{state[name]}")
        position = _c.packjit_packer_position(**state)
        with self._lock:
            check(library().packjit_packer_resume(self._handle, ctypes.byref(position)))

    def set_epoch(self, epoch: int) -> None:
        """Goes to the beginning of an epoch, counted from 0."""
        self.load_state_dict({**self.state_dict(), "epoch": epoch, "step": 0})

    def statistics(self) -> Dict[str, Any]:
        """Of the current epoch and all ranks together, under the names of packjit_packer_statistics in packjit.h:
        fill_rate, mean_order_drift, documents_cut... Plans the epoch again, so it takes as long as making a packer."""
        found = self._filled(library().packjit_packer_get_statistics, _c.packjit_packer_statistics)
        return {name: getattr(found, name) for name, _ in found._fields_ if name != "struct_size"}

    def _filled(self, function, kind):
        result = kind()
        with self._lock:
            check(function(self._handle, ctypes.byref(result)))
        return result

    def _copied(self, found: _c.packjit_step) -> Step:
        shape = (found.rows, found.pack_length)
        pieces = np.empty(found.n_pieces, PIECE)
        if found.n_pieces:
            ctypes.memmove(pieces.ctypes.data, found.pieces, pieces.nbytes)
        tokens = {name: np.ctypeslib.as_array(getattr(found, name), shape).copy()
                  for name in ("position_indices", "seq_idx", "document_ids", "document_offsets", "loss_weights")}
        cu_seqlens = np.ctypeslib.as_array(found.cu_seqlens, (found.n_cu_seqlens,)).copy()
        return Step(epoch=found.epoch, step=found.step, steps=found.steps, tokens=found.tokens,
                    max_seqlen=found.max_seqlen, pieces=pieces, cu_seqlens=cu_seqlens, starts=self._starts, **tokens)


def _integers(values: Sequence[int], name: str) -> np.ndarray:
    array = np.asarray(values)
    if array.size == 0:
        return np.zeros(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise BadArgument(f"Packer: {name} has shape {array.shape} and dtype {array.dtype}, expected a list of "
                          "integers")
    return np.ascontiguousarray(array, np.int64)


def _pointer(array: np.ndarray):
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_int64))
