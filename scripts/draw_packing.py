#!/usr/bin/env python3
"""Draws docs/packing.svg: the first rows of the mixed lengths, padded, in arrival order and packed.

    scripts/draw_packing.py [PACKJIT_PROGRAM]

Rows and fill rates come from `packjit pack`; the fill rates are those of the whole file.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
LENGTHS = ROOT / "bench/data/mixed_lengths.txt"
PACK_LENGTH = 4096  # tokens of a row
ROWS = 16           # rows of a panel
WIDTH, ROW, GAP = 236, 9, 2                   # of a row, pixels; between rows
LEFT, TOP, BETWEEN = 12, 58, 24
SHADES = ["#2b6cb0", "#4a90d9", "#7fb3e6"]     # documents side by side get different ones
PADDING = "#e8e8e8"


def packed(program, method):
    """Statistics of the whole file, and the lengths of the pieces in each of the first rows."""
    with tempfile.TemporaryDirectory() as folder:
        plan = pathlib.Path(folder) / "plan.json"
        command = [program, "pack", "--lengths", LENGTHS, "--pack-length", str(PACK_LENGTH), "--method", method,
                   "--out", plan, "--json"]
        statistics = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        rows = [row for call in json.loads(plan.read_text())["calls"] for row in call["rows"]]
    return statistics, [[piece["length"] for piece in row["pieces"]] for row in rows[:ROWS]]


def padded(statistics):
    """Every document in rows of its own: the share of real tokens, and the first rows."""
    rows = []
    for length in map(int, LENGTHS.read_text().split()):
        whole, rest = divmod(length, PACK_LENGTH)
        rows += [[PACK_LENGTH]] * whole + ([[rest]] if rest else [])
    return statistics["tokens"] / (len(rows) * PACK_LENGTH), rows[:ROWS]


def panel(index, title, fill, rows):
    x = LEFT + index * (WIDTH + BETWEEN)
    parts = [f'<text x="{x}" y="22" class="title">{title}</text>',
             f'<text x="{x}" y="44"><tspan class="number">{100 * fill:.2f} %</tspan> real tokens</text>']
    for number, row in enumerate(rows):
        y = TOP + number * (ROW + GAP)
        parts.append(f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{ROW}" fill="{PADDING}"/>')
        start = 0
        for place, length in enumerate(row):
            left, right = (x + WIDTH * at / PACK_LENGTH for at in (start, start + length))
            shade = SHADES[place % len(SHADES)]
            parts.append(f'<rect x="{left:.1f}" y="{y}" width="{right - left:.1f}" height="{ROW}" fill="{shade}"/>')
            start += length
    return parts


def main():
    program = sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/release/cli/packjit"
    arrival, arrival_rows = packed(program, "next-fit")
    greedy, greedy_rows = packed(program, "local-greedy")
    panels = [("One document a row, padded", *padded(greedy)),
              ("In arrival order (next-fit)", arrival["fill_rate"], arrival_rows),
              ("Packed (local-greedy)", greedy["fill_rate"], greedy_rows)]
    width = 2 * LEFT + 3 * WIDTH + 2 * BETWEEN
    bottom = TOP + ROWS * (ROW + GAP)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{bottom + 48}" '
             f'viewBox="0 0 {width} {bottom + 48}" font-family="sans-serif" font-size="12" fill="#333">',
             "<style>.title{font-weight:bold;font-size:13px}.number{font-weight:bold;font-size:15px}</style>",
             '<rect width="100%" height="100%" fill="white"/>']
    for index, content in enumerate(panels):
        parts += panel(index, *content)
    for line, text in enumerate([f"The first {ROWS} rows of {PACK_LENGTH:,} tokens. Blue: documents, grey: padding.",
                                 f"The shares are those of all {greedy['documents']:,} documents of {LENGTHS.name}."]):
        parts.append(f'<text x="{LEFT}" y="{bottom + 18 + 17 * line}">{text}</text>')
    (ROOT / "docs/packing.svg").write_text("\n".join(parts + ["</svg>", ""]))


if __name__ == "__main__":
    main()
