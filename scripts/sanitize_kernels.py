#!/usr/bin/env python3
"""compute-sanitizer over every Config that packjit ships, on a GPU: sanitize_kernels.py PACKJIT [--jobs N] prints JSON.

PACKJIT is the program; compute-sanitizer has to be on the path. Each Config runs once under each tool, through
`packjit verify --case` (docs/case_format.md): values, isolation and repetition are checked on the way. Cases are small,
since racecheck takes thousands of times as long as a run. Exit status 1 where a tool or a check found something.
"""

import argparse
import concurrent.futures
import datetime
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench"))
from reports import MISSING, gpu  # noqa: E402

TOOLS = "memcheck", "racecheck", "synccheck", "initcheck"
SHIPPED = ROOT / "database" / "shipped"
# Short, long and padding, where tiles of 8 to 64 tokens begin and end; with segments one sequence is longer than one.
ROWS = [[-3, 3, 1, 63, 4, 5, -4], [1, 1, 1, 1, -2, 15, 16, 17, 7, 8, 9, 5], [-1, 82]]
LONG_ROWS = [[1029, 5]]
DIM = 40  # five vectors of eight: blocks are not full
FIELDS_OF_SPEC = "dtype", "conv_width", "d_state", "map", "layout"


def cases() -> list:
    """One for each (operator, Config), in the order of the files."""
    found = {}
    for path in sorted(SHIPPED.glob("*.json")):
        for entry in json.loads(path.read_text())["entries"]:
            config = {name: str(value) for name, value in entry["config"].items()}
            long = config.get("segments") == "on"
            case = {"op": entry["operator"], "dim": DIM, "rows": LONG_ROWS if long else ROWS, "initial_states": True,
                    "final_states": True, "config": config,
                    **{name: entry["spec"][name] for name in FIELDS_OF_SPEC if name in entry["spec"]}}
            found.setdefault(json.dumps([case["op"], config]), case)
    return list(found.values())


def sanitize(packjit: str, tool: str, case: dict) -> tuple:
    """(whether nothing was found, the tool's summary or the end of what was printed)"""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(case, file)
        file.flush()
        done = subprocess.run(["compute-sanitizer", "--error-exitcode", "7", "--tool", tool, packjit, "verify",
                               "--device", "cuda", "--case", file.name], capture_output=True, text=True)
    summaries = [line.strip("= ") for line in done.stdout.splitlines() if "SUMMARY" in line]
    if done.returncode == 0 and len(summaries) == 1 and "all within bounds" in done.stdout:
        return True, summaries[0]
    return False, "\n".join([f"exit status {done.returncode}", *(done.stdout + done.stderr).splitlines()[-30:]])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packjit")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="at a time (default: one a processor)")
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=TOOLS)
    given = parser.parse_args()
    try:
        subprocess.run(["compute-sanitizer", "--version"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"sanitize_kernels.py: it takes a GPU and compute-sanitizer, which comes with the CUDA toolkit: {error}",
              file=sys.stderr)
        return MISSING
    found = gpu()
    if not found:
        print("sanitize_kernels.py: nvidia-smi finds no GPU, and there is nothing to check without one",
              file=sys.stderr)
        return MISSING
    all_cases = cases()
    runs = []
    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        for tool in given.tools:
            results = list(pool.map(lambda case: sanitize(given.packjit, tool, case), all_cases))
            runs.append({"tool": tool, "clean": sum([clean for clean, _ in results]),
                         "summaries": sorted({text for clean, text in results if clean}),
                         "findings": [{"case": case, "output": text}
                                      for case, (clean, text) in zip(all_cases, results) if not clean]})
            print(f"{tool}: {runs[-1]['clean']} of {len(all_cases)} Configs clean", file=sys.stderr)
    print(json.dumps({"date": datetime.date.today().isoformat(), "command": "scripts/sanitize_kernels.py packjit",
                      "gpu": found["name"], "driver": found["driver_version"], "configs": len(all_cases),
                      "runs": runs}, indent=1))
    return 1 if any([run["findings"] for run in runs]) else 0


if __name__ == "__main__":
    sys.exit(main())
