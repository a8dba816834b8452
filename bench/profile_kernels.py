#!/usr/bin/env python3
"""What bounds the kernels on this GPU, by Nsight Compute's counters: profile_kernels.py PACKJIT prints JSON.

PACKJIT is the program; `ncu` has to be on the path and allowed to read the counters. Each kernel is profiled in its
second launch by `packjit bench ops` at the shapes that the README measures. Nsight Compute holds the clock lower than a
run has it, so no times are shown; instructions and shares of the pipes are those of a run.
"""

import csv
import datetime
import io
import json
import subprocess
import sys

from reports import MISSING, gpu

DIM = 4096
KERNELS = [(operator, tokens) for tokens in (32768, 4096)
           for operator in ("ssm_pack_fwd", "ssm_pack_bwd", "conv1d_pack_fwd", "conv1d_pack_bwd")]
METRICS = {
    "registers": "launch__registers_per_thread",
    "warps_a_multiprocessor": "sm__warps_active.avg.per_cycle_active",
    "instructions": "smsp__inst_executed.sum",  # of warps
    "issue_slots_percent": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "special_functions_percent": "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active",
    "multiply_add_percent": "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active",
    "shared_memory_path_percent": "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed",
    "memory_percent": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "clock_ghz": "smsp__cycles_elapsed.avg.per_second",
}
STALLS = ("not_selected", "wait", "dispatch_stall", "short_scoreboard", "long_scoreboard", "mio_throttle",
          "math_pipe_throttle", "barrier")  # reasons; warps that wait for them a issued instruction
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"


def profile(packjit: str, operator: str, tokens: int) -> dict:
    metrics = [*METRICS.values(), *[STALL.format(reason) for reason in STALLS]]
    bench = ["bench", "ops", "--only", operator, "--tokens", str(tokens), "--repeats", "1", "--cache", "warm"]
    command = ["ncu", "--csv", "--page", "raw", "--print-units", "base", "--print-fp",
               "--kernel-name", f"regex:^{operator}$", "--launch-skip", "1", "--launch-count", "1",
               "--metrics", ",".join(metrics)]
    done = subprocess.run([*command, packjit, *bench], capture_output=True, text=True)
    table = [line for line in done.stdout.splitlines() if line.startswith('"')]
    if done.returncode or len(table) < 3:  # names, units, values
        sys.exit(f"profile_kernels.py: {' '.join(command[:1] + bench)} gave no profile:\n{done.stderr or done.stdout}")
    names, _, values = csv.reader(io.StringIO("\n".join(table[:3])))
    found = dict(zip(names, values))
    number = {name: float(found[metric].replace(",", "")) for name, metric in METRICS.items()}
    clock_ghz = number.pop("clock_ghz") / 1e9
    instructions = number.pop("instructions")
    return {"operator": operator, "tokens": tokens, "command": "packjit " + " ".join(bench),
            "instructions_an_element": round(instructions * 32 / (tokens * DIM), 1),
            **{name: round(value, 2) for name, value in number.items()}, "clock_ghz": round(clock_ghz, 3),
            "stalled_warps_an_issue": {reason: round(float(found[STALL.format(reason)]), 2) for reason in STALLS}}


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    found = gpu()
    if not found:
        print("profile_kernels.py: nvidia-smi finds no GPU, and there is nothing to profile without one",
              file=sys.stderr)
        return MISSING
    kernels = [profile(sys.argv[1], *kernel) for kernel in KERNELS]
    print(json.dumps({"date": datetime.date.today().isoformat(), "command": "python bench/profile_kernels.py packjit",
                      "gpu": found["name"], "driver": found["driver_version"], "dim": DIM, "kernels": kernels},
                     indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
