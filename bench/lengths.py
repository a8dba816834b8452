"""Lengths of real documents, cut for a benchmark."""

import argparse
import pathlib

DATA = pathlib.Path(__file__).parent / "data" / "mixed_lengths.txt"
REAL_CUT = 2048  # tokens at which documents are cut; with another cut all lengths are scaled by its share of this one


def lengths_file(name: str) -> list[int]:
    """For argparse: what a file has, tokens of a document on each line. It is read once: it may be a pipe."""
    try:
        words = pathlib.Path(name).read_text().split()
    except (OSError, UnicodeDecodeError) as error:
        raise argparse.ArgumentTypeError(f"{name} cannot be read ({error}): give a file with the tokens of a document "
                                         "on each line") from error
    wrong = next((word for word in words if not word.isdecimal() or int(word) < 1), None)
    if wrong is not None or not words:
        found = "nothing" if wrong is None else repr(wrong)
        raise argparse.ArgumentTypeError(f"{name} has {found} where the tokens of a document were expected, a number "
                                         "of 1 or more on each line")
    return [int(word) for word in words]


def pieces_of(lengths: list[int], cut: int) -> list[int]:
    """Of documents with so many tokens, cut as packing would; the longest has `cut` tokens."""
    pieces = [min(REAL_CUT, length - begin) for length in lengths for begin in range(0, length, REAL_CUT)]
    return [max(2, piece * cut // REAL_CUT) for piece in pieces]
