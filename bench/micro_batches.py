"""The same documents as the micro-batches of one training step: packed, padded, one at a time."""

import torch

from packjit.torch import CONFIGURATIONS, MambaConfig, SequenceMap, next_token_targets


def config_of(size: str) -> MambaConfig:
    """A published size, or tiny, for trying out."""
    return CONFIGURATIONS[size] if size != "tiny" else MambaConfig(16, 2, vocab_size=64)


# A micro-batch is (make the map, input_ids, targets, weights). `pieces` are the tokens of documents, each (length).


def of_rows(ids: torch.Tensor, lengths: list[int]):
    """Rows that hold one document each, of `lengths`."""
    places = torch.arange(ids.shape[1], device=ids.device)
    weights = (places[None] < torch.tensor(lengths, device=ids.device)[:, None] - 1).float()
    seq_map = SequenceMap.rows(*ids.shape, ids.device)
    return lambda: seq_map, ids, torch.roll(ids, -1, dims=1), weights


def packed(pieces: list[torch.Tensor], tokens: int, seq_map_of) -> list:
    """All in one row of `tokens`. `seq_map_of(positions)` is asked in every step, since a step of a training run has
    other documents."""
    room = tokens - sum(len(piece) for piece in pieces)
    device = pieces[0].device
    positions = torch.cat([torch.arange(len(piece)) for piece in pieces] + [torch.full((room,), -1)])[None].to(device)
    ids = torch.cat([*pieces, torch.zeros(room, dtype=torch.int64, device=device)])[None]
    return [(lambda: seq_map_of(positions), ids, *next_token_targets(ids, positions))]


def padded(pieces: list[torch.Tensor], cut: int, rows: int) -> list:
    """Each in a row of `cut` tokens, `rows` of them together."""
    batches = []
    for begin in range(0, len(pieces), rows):
        part = pieces[begin:begin + rows]
        ids = torch.zeros(len(part), cut, dtype=torch.int64, device=part[0].device)
        for row, piece in zip(ids, part):
            row[:len(piece)] = piece
        batches.append(of_rows(ids, [len(piece) for piece in part]))
    return batches


def one(pieces: list[torch.Tensor]) -> list:
    """Each alone."""
    return [of_rows(piece[None], [len(piece)]) for piece in pieces]
