"""Lengths of real documents, cut for a benchmark."""

import pathlib

DATA = pathlib.Path(__file__).parent / "data" / "mixed_lengths.txt"
REAL_CUT = 2048  # tokens at which documents are cut; with another cut all lengths are scaled by its share of this one


def pieces_of(path: pathlib.Path, cut: int) -> list[int]:
    """Of documents, tokens on each line of the file, cut as packing would; the longest has `cut` tokens."""
    lengths = [int(line) for line in path.read_text().split()]
    pieces = [min(REAL_CUT, length - begin) for length in lengths for begin in range(0, length, REAL_CUT)]
    return [max(2, piece * cut // REAL_CUT) for piece in pieces]
