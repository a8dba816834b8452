#!/usr/bin/env python3
"""Times the official kernels, mamba-ssm's selective scan and causal-conv1d, on the lengths of `packjit bench ops`.

    packjit bench ops --json >report.json && PYTHON scripts/bench_peers.py --report report.json
    PYTHON scripts/bench_peers.py --lengths 512,700,60 --dim 4096
    packjit bench ops --peers PYTHON        runs it and shows its rows below packjit's

PYTHON has PyTorch, a GPU, and mamba_ssm or causal_conv1d or both; what is missing is said, exit status 3 when nothing can
be measured. Rows, `way`:

    rows        the batch as it lies, but every row one sequence: the official scan knows no boundaries, so its results
                are those of other data, in the same time
    packed      the convolution with seq_idx, channel-last, which it asks for then
    padded      each sequence in a row as long as the longest
    one_by_one  a call for each sequence, on a copy of its tokens made beforehand

Backward rows are autograd's backward alone, with its fills and conversions; `ssm_pack_fwd+bwd` is both in one timed region.
Buffers rotate as with `--cache rotating`, and the GPU sleeps while the host launches.
"""

import argparse
import importlib
import json
import os
import pathlib
import statistics
import sys
import time

CALLS_PER_REPEAT = 5
MISSING = 3  # exit status
PACKAGES = {"torch": "torch", "mamba_ssm": "mamba-ssm", "causal_conv1d": "causal-conv1d"}


def output_file(name):
    """For argparse: a file that can be written, which is found out before the work. That of bench/reports.py asks
    for one that can be replaced; and packjit carries this script alone."""
    path = pathlib.Path(name)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{name} is a folder: give the file to write")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{name} cannot be written, since {path.parent} is no folder: make it, or "
                                         "give another one")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{name} cannot be written: change who may write there, or give another file")
    return path


def options():
    parser = argparse.ArgumentParser(prog="bench_peers.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    lengths = parser.add_mutually_exclusive_group(required=True)
    lengths.add_argument("--report", type=pathlib.Path, help="output of packjit bench ops --json: lengths, sizes, repeats")
    lengths.add_argument("--lengths", help="of one row: 512,700,60")
    parser.add_argument("--dim", type=int, default=4096)
    parser.add_argument("--d-state", type=int, default=16)
    parser.add_argument("--conv-width", type=int, default=4)
    parser.add_argument("--dtype", choices=("fp32", "fp16", "bf16"), default="bf16")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--out", type=output_file, help="write JSON to this file")
    parser.set_defaults(refuse=parser.error)
    return parser.parse_args()


def work_of(given):
    """What to measure, from a report or from options: the keys are those of the report."""
    if given.report is not None:
        try:
            report = json.loads(given.report.read_text())
            return {key: report[key] for key in ("lengths", "seqlen", "dim", "d_state", "conv_width", "dtype", "repeats")}
        except (OSError, ValueError, KeyError, TypeError) as error:
            given.refuse(f"--report {given.report} is no report of `packjit bench ops --json` ({error!r}): write one and "
                         "give its path")
    try:
        lengths = [int(length) for length in given.lengths.split(",")]
    except ValueError:
        given.refuse(f"--lengths is {given.lengths!r}, expected numbers with commas between them: 512,700,60")
    return {"lengths": [lengths], "seqlen": sum(lengths), "dim": given.dim, "d_state": given.d_state,
            "conv_width": given.conv_width, "dtype": given.dtype, "repeats": given.repeats}


def seq_idx_of(lengths, seqlen):
    """For each row the number of the sequence of each token; padding is one sequence more."""
    rows = []
    for row in lengths:
        ids = [number for number, length in enumerate(row) for _ in range(length)]
        rows.append(ids + [len(row)] * (seqlen - len(ids)))
    return rows


def places_of(lengths):
    """(row, first token, behind the last token) of each sequence."""
    places = []
    for number, row in enumerate(lengths):
        start = 0
        for length in row:
            places.append((number, start, start + length))
            start += length
    return places


def own_tokens(tensor, place):
    """A copy of one sequence's tokens: the official kernels take 16-byte accesses by the length alone, wherever a view begins."""
    row, first, last = place
    return tensor[row:row + 1, :, first:last].contiguous()


def spread(milliseconds):
    ordered = sorted(milliseconds)
    return {"median_ms": statistics.median(ordered), "p10_ms": ordered[int(0.1 * (len(ordered) - 1))],
            "p90_ms": ordered[int(0.9 * (len(ordered) - 1))]}


def import_what_is_there():
    """Modules by name, and for each that is missing why."""
    found, missing = {}, {}
    for name in PACKAGES:
        try:
            found[name] = importlib.import_module(name)
        except Exception as error:  # a package built for another torch fails in many ways
            missing[name] = f"{type(error).__name__}: {error}"
    return found, missing


def say_what_is_missing(missing):
    for name, reason in missing.items():
        print(f"bench_peers.py: {name} cannot be imported by {sys.executable} ({reason}); "
              f"install it with: {sys.executable} -m pip install {PACKAGES[name]}"
              + ("" if name == "torch" else " --no-build-isolation"), file=sys.stderr)


class Peers:
    """The official functions on tensors of one piece of work. Made once torch is known to be there."""

    def __init__(self, torch, work):
        self.torch, self.work = torch, work
        self.dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[work["dtype"]]
        self.real_tokens = sum(map(sum, work["lengths"]))
        gpu = torch.cuda.get_device_properties(0)
        self.l2_bytes = getattr(gpu, "L2_cache_size", 64 << 20)

    def random(self, *shape, dtype=None):
        tensor = self.torch.randn(*shape, device="cuda", dtype=self.torch.float32)
        return tensor.to(dtype or self.dtype)

    def scan_inputs(self, batch, seqlen):
        """u, delta, A, B, C, D, z, delta_bias as a Mamba model has them: dt between about 0.001 and 0.1."""
        dim, d_state, fp32 = self.work["dim"], self.work["d_state"], self.torch.float32
        rates = -self.torch.arange(1, d_state + 1, device="cuda", dtype=fp32).repeat(dim, 1)
        return [self.random(batch, dim, seqlen), self.random(batch, dim, seqlen), rates.contiguous(),
                self.random(batch, d_state, seqlen), self.random(batch, d_state, seqlen), self.random(dim, dtype=fp32),
                self.random(batch, dim, seqlen), self.random(dim, dtype=fp32) - 4.0]

    def conv_inputs(self, batch, seqlen, channel_last):
        dim = self.work["dim"]
        x = self.random(batch, seqlen, dim).transpose(1, 2) if channel_last else self.random(batch, dim, seqlen)
        return [x, self.random(dim, self.work["conv_width"]), self.random(dim)]

    def sets_of(self, make):
        """So many sets of inputs that together they exceed twice the L2."""
        sets = [make()]
        size = sum(tensor.numel() * tensor.element_size() for tensor in sets[0])
        while len(sets) * size <= 2 * self.l2_bytes and len(sets) < 64:
            sets.append(make())
        return sets

    def measure(self, work, calls):
        """Spread of milliseconds a call; work(turn) launches one call on the set of that turn."""
        cuda = self.torch.cuda
        for turn in range(3):
            work(turn)
        cuda.synchronize()
        start = time.perf_counter()
        for turn in range(calls):
            work(turn)
        # Longer than the host takes to launch, in clocks of a 2 GHz GPU.
        sleep = int(min(0.2, max(2e-4, 2 * (time.perf_counter() - start))) * 2e9)
        cuda.synchronize()
        times, turn = [], 0
        for _ in range(self.work["repeats"]):
            first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            cuda._sleep(sleep)
            first.record()
            for _ in range(calls):
                work(turn)
                turn += 1
            last.record()
            last.synchronize()
            times.append(first.elapsed_time(last) / calls)
        return spread(times)

    def rows(self, operator, peer, way, make_inputs, parts_of, function):
        """Rows of forward, backward and both. parts_of(inputs) are the arguments of each call of one turn."""
        torch, results = self.torch, []
        try:
            sets = [[[tensor.detach().requires_grad_() for tensor in part] for part in parts_of(inputs)]
                    for inputs in self.sets_of(make_inputs)]
            calls = 1 if len(sets[0]) > 1 else CALLS_PER_REPEAT
            gradients = [[torch.randn_like(part[0]) for part in parts] for parts in sets]

            def forward(turn):
                with torch.no_grad():
                    for part in sets[turn % len(sets)]:
                        function(*part)

            def both(turn):
                for part, gradient in zip(sets[turn % len(sets)], gradients[turn % len(sets)]):
                    torch.autograd.grad(function(*part), part, gradient)

            results.append((f"{operator}_fwd", self.measure(forward, calls)))
            if operator == "ssm_pack":
                results.append((f"{operator}_fwd+bwd", self.measure(both, calls)))
            outputs = [[function(*part) for part in parts] for parts in sets]

            def backward(turn):
                at = turn % len(sets)
                for part, output, gradient in zip(sets[at], outputs[at], gradients[at]):
                    torch.autograd.grad(output, part, gradient, retain_graph=True)

            results.append((f"{operator}_bwd", self.measure(backward, calls)))
        except torch.cuda.OutOfMemoryError:
            results.append((operator, {"skipped": "the GPU has too little memory"}))
        rows = []
        for name, times in results:
            row = {"operator": name, "peer": peer, "way": way, **times}
            if "median_ms" in times:
                row["giga_elements_per_second"] = self.real_tokens * self.work["dim"] / times["median_ms"] * 1e-6
            rows.append(row)
        torch.cuda.empty_cache()
        return rows

    def shapes(self):
        """(way, batch, seqlen, places or nothing) of the ways that need no boundaries."""
        lengths, places = self.work["lengths"], places_of(self.work["lengths"])
        longest = max(last - first for _, first, last in places)
        return [("rows", len(lengths), self.work["seqlen"], None), ("padded", len(places), longest, None),
                ("one_by_one", len(lengths), self.work["seqlen"], places)]

    def scan(self):
        from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

        def function(u, delta, A, B, C, D, z, delta_bias):
            return selective_scan_fn(u, delta, A, B, C, D, z=z, delta_bias=delta_bias, delta_softplus=True)

        def cut(inputs, places):
            return [[own_tokens(tensor, place) if tensor.dim() == 3 else tensor for tensor in inputs] for place in places]

        rows = []
        for way, batch, seqlen, places in self.shapes():
            rows += self.rows("ssm_pack", "mamba_ssm", way, lambda: self.scan_inputs(batch, seqlen),
                              lambda inputs: cut(inputs, places) if places else [inputs], function)
        return rows

    def convolution(self):
        from causal_conv1d import causal_conv1d_fn

        work = self.work
        seq_idx = self.torch.tensor(seq_idx_of(work["lengths"], work["seqlen"]), device="cuda", dtype=self.torch.int32)
        rows = self.rows("conv1d_pack", "causal_conv1d", "packed",
                         lambda: self.conv_inputs(len(work["lengths"]), work["seqlen"], True), lambda inputs: [inputs],
                         lambda x, weight, bias: causal_conv1d_fn(x, weight, bias, seq_idx=seq_idx, activation="silu"))
        for way, batch, seqlen, places in self.shapes():
            rows += self.rows(
                "conv1d_pack", "causal_conv1d", way, lambda: self.conv_inputs(batch, seqlen, False),
                lambda inputs: ([[own_tokens(inputs[0], place), *inputs[1:]] for place in places] if places else [inputs]),
                lambda x, weight, bias: causal_conv1d_fn(x, weight, bias, activation="silu"))
        return rows


def measured(work, found):
    """The report: versions and rows."""
    torch = found["torch"]
    peers = Peers(torch, work)
    rows = (peers.scan() if "mamba_ssm" in found else []) + (peers.convolution() if "causal_conv1d" in found else [])
    return {"gpu": torch.cuda.get_device_name(0), "cuda": torch.version.cuda,
            "versions": {name: getattr(module, "__version__", "unknown") for name, module in found.items()}, "rows": rows}


def table(report):
    lines = [f"{'operator':<31} {'way':<10} {'median ms':>9} {'10 % to 90 %':>18} {'G elem/s':>8}"]
    for row in report["rows"]:
        start = f"{row['operator'] + ' ' + row['peer']:<31} {row['way']:<10} "
        if "skipped" in row:
            lines.append(start + "skipped: " + row["skipped"])
        else:
            lines.append(start + f"{row['median_ms']:>9.4f} {row['p10_ms']:>8.4f} {row['p90_ms']:>9.4f} "
                                 f"{row['giga_elements_per_second']:>8.1f}")
    return "\n".join(lines)


def main():
    given = options()
    work = work_of(given)
    found, missing = import_what_is_there()
    say_what_is_missing(missing)
    if "torch" not in found or len(found) == 1:
        sys.exit(MISSING)
    if not found["torch"].cuda.is_available():
        print("bench_peers.py: PyTorch finds no GPU; check nvidia-smi and that this PyTorch is built for CUDA",
              file=sys.stderr)
        sys.exit(MISSING)
    report = {"missing": missing, **measured(work, found)}
    if given.out is not None:
        given.out.write_text(json.dumps(report))
    elif given.json:
        print(json.dumps(report, indent=2))
    else:
        print(table(report))


if __name__ == "__main__":
    main()
