#!/usr/bin/env python3
"""Trains Mamba language models on several GPUs of one host and says what each more of them gives.

    python bench/scaling.py --json bench/results/h200_scaling.json --plot bench/results/h200_scaling.svg
    python bench/scaling.py --model 2.8b --gpus 2 4 8 --shard
    python bench/scaling.py --device cpu --model tiny --tokens 64 --cut 16 --gpus 1 2      tries it out on processes

For each size and number of GPUs it starts itself, with torchrun, and the training of examples/train_mamba.py: fp32
parameters, bf16 arithmetic, AdamW, DDP (FSDP with --shard) over NCCL. It measures

    speed     whole updates, one packed row of --tokens a GPU, the packer's balanced division; every way on the same
              documents: packed, padded (rows of --cut), one (document at a time). Real tokens a GPU and second, and
              the efficiency: that, by the same on the fewest GPUs
    loss      --loss-updates updates of the same global batch, as many rows as the most GPUs, on any number of GPUs: the
              largest difference from one GPU. One GPU also runs it with the rows added up in the opposite order: what
              the order of sums alone changes. Exit status 4 above ALLOWED times that
    balance   tokens and longest sequence a GPU, and seconds that GPUs wait for the slowest one before they reduce, of
              updates from the whole epoch, with the balanced division and with documents dealt out in turn

Where GPUs come in several machines or commands are short, --add keeps what the file of --json has already. Exit status
3 without a GPU, 4 where a part failed; the others are reported. On the CPU (gloo, host execution) every
figure is said to be of a CPU process: it says nothing about a GPU.
"""

import argparse
import gc
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from lengths import DATA, REAL_CUT, lengths_file, pieces_of
from reports import (FAILED, MISSING, difference, load_example, opening, output_file, plot_file, save_figure,
                     torch_is_missing, write_whole)

WAYS = ("packed", "padded", "one")
ALLOWED = 4  # times the difference that the order of sums makes on one GPU: on several there are other orders again
ROUNDING = 1e-4  # nats; below this a difference is none
UNITS = {"cuda": ("GPU", "GPUs"), "cpu": ("CPU process", "CPU processes")}
SETTINGS = ("tokens", "cut", "padded_rows", "rows", "checkpoints", "shard", "steps", "loss_updates", "seed")


def options(arguments=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scaling.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=["1.4b", "2.8b"], help="sizes; tiny is for trying out")
    parser.add_argument("--gpus", nargs="+", type=int, default=[1, 2, 4, 8], help="as far as the machine has them")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--tokens", type=int, default=16384, help="of a packed row")
    parser.add_argument("--cut", type=int, default=REAL_CUT, help="longest document, and length of padded rows")
    parser.add_argument("--padded-rows", type=int, default=8, help="rows of a padded micro-batch")
    parser.add_argument("--lengths", type=lengths_file, default=str(DATA), help="file or pipe with the tokens of a "
                        "document on each line")
    parser.add_argument("--steps", type=int, default=2, help="different updates that are timed")
    parser.add_argument("--repeats", type=int, default=3, help="of each")
    parser.add_argument("--balance-steps", type=int, default=8, help="different updates whose waiting is measured")
    parser.add_argument("--loss-updates", type=int, default=10)
    parser.add_argument("--rows", type=int, help="of the global batch of the losses; default: the most of --gpus")
    parser.add_argument("--shard", action="store_true", help="FSDP on two GPUs and more, instead of DDP")
    parser.add_argument("--checkpoints", action="store_true", help="the scan keeps states for its backward")
    parser.add_argument("--timeout", type=float, default=300, help="seconds that a process waits for the others")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=UNITS, default="cuda")
    parser.add_argument("--json", type=output_file, help="write the report to this file")
    parser.add_argument("--add", action="store_true", help="keep what that file has of other sizes and numbers of GPUs")
    parser.add_argument("--plot", type=plot_file, help="draw it, by the ending of the name")
    parser.add_argument("--worker", type=pathlib.Path, help=argparse.SUPPRESS)  # the process's part; writes this file
    given = parser.parse_args(arguments)
    if min(given.gpus) < 1 or min(given.steps, given.repeats, given.balance_steps, given.loss_updates) < 1:
        parser.error("--gpus, --steps, --repeats, --balance-steps and --loss-updates are 1 or more")
    given.gpus = sorted(set(given.gpus))
    given.rows = given.rows or given.gpus[-1]
    uneven = [count for count in given.gpus if given.rows % count]
    if uneven:
        parser.error(f"--rows is {given.rows}, which {uneven[0]} GPUs cannot share evenly: give a multiple of all of "
                     "--gpus")
    if given.add and not given.json:
        parser.error("--add keeps what the file of --json has: give --json")
    return given


# --- in each process ----------------------------------------------------------------------------------------------


class Run:
    """A model of its own and the documents of some packed calls an update, shared by the processes."""

    def __init__(self, given, train, processes, calls: int, division: str = "balanced", turned: bool = False):
        import numpy
        import torch

        import micro_batches
        from packjit.packing import Packer
        from packjit.torch import MambaLM
        self.given, self.train, self.processes, self.torch, self.ways = given, train, processes, torch, micro_batches
        lengths = pieces_of(given.lengths, given.cut)
        config = micro_batches.config_of(given.model[0])
        self.tokens = numpy.random.default_rng(given.seed).integers(config.vocab_size, size=sum(lengths))
        first, last = [(processes.rank + more) * calls // processes.count for more in (0, 1)]
        self.packers = [Packer(lengths, given.tokens, method="balanced", division=division, ranks=calls, rank=rank,
                               seed=given.seed) for rank in range(first, last)]
        if turned:
            self.packers.reverse()
        self.row_map = train.RowMap(self.packers[0])
        torch.manual_seed(given.seed)
        on_gpu = given.device == "cuda"
        self.model = train.distributed(MambaLM(config, device=processes.device, checkpoints=given.checkpoints,
                                               fuse=on_gpu), processes, given.shard and processes.count > 1)
        self.settings = train.options(["--text", str(DATA), "--out", ".", "--device", given.device])
        self.optimizer = train.optimizer_of(self.model, self.settings)
        self.autocast = torch.autocast(given.device, dtype=torch.bfloat16, enabled=on_gpu)

    def steps(self) -> list:
        """This process's calls of the next update: their documents, (n_pieces) of dtype PIECE, and tokens of each."""
        found = [packer.next() for packer in self.packers]
        return [(step.pieces, [self.torch.from_numpy(piece).to(self.processes.device) for piece in self.split(step)])
                for step in found]

    def split(self, step) -> list:
        row = step.gather(self.tokens)[0]
        return [row[piece["start"]:piece["start"] + piece["length"]] for piece in step.pieces]

    def calls(self, way: str, steps: list) -> list:
        """Of an update, as many on every process where parameters are divided, since all take part in each layer; at
        least one, since all take part in the reduction."""
        made = {"packed": lambda pieces: self.ways.packed(pieces, self.given.tokens, self.row_map.of),
                "padded": lambda pieces: self.ways.padded(pieces, self.given.cut, self.given.padded_rows),
                "one": self.ways.one}[way]
        calls = [self.train.Call(*batch) for _, pieces in steps if pieces for batch in made(pieces)]
        most = max(self.processes.gather(len(calls))) if self.given.shard else max(len(calls), 1)
        nothing = self.torch.zeros(1, 2, dtype=self.torch.int64, device=self.processes.device)
        return calls + [self.train.Call(*self.ways.of_rows(nothing, [1])) for _ in range(most - len(calls))]

    def update(self, calls: list, number: int, measure: bool = False):
        """Mean loss of all processes' tokens, a tensor, and the seconds that this process waited, where measured."""
        weight = self.processes.sum(self.torch.stack([call.weights.sum() for call in calls]).sum())
        loss, waited = self.train.gradients(self.model, self.processes, calls, weight, self.autocast, measure)
        self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = self.train.learning_rate(number, self.settings)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return self.processes.sum(loss), waited

    # What is measured.

    def speed(self, way: str) -> dict:
        on_gpu = self.given.device == "cuda"
        steps = [self.steps() for _ in range(self.given.steps)]
        work = [self.calls(way, step) for step in steps]
        tokens = [sum(self.processes.gather(sum(int(pieces["length"].sum()) for pieces, _ in step))) for step in steps]
        if on_gpu:
            self.torch.cuda.reset_peak_memory_stats()
        seconds, losses = [], []
        for round_number in range(self.given.repeats + 1):
            for calls in work:
                self.processes.wait()
                began = time.perf_counter()
                losses.append(self.update(calls, 0)[0].item())
                self.processes.wait()
                if round_number:  # the first compiles
                    seconds.append(time.perf_counter() - began)
        rates = [count / self.processes.count / spent for count, spent in zip(tokens * self.given.repeats, seconds)]
        return {"tokens_per_second": statistics.median(rates), "least_tokens_per_second": min(rates),
                "most_tokens_per_second": max(rates), "updates": len(rates), "median_seconds":
                statistics.median(seconds), "tokens_an_update": tokens, "first_loss": losses[0],
                "peak_memory_gib": self.torch.cuda.max_memory_allocated() / 2 ** 30 if on_gpu else None}

    def losses(self) -> list[float]:
        found = []
        for number in range(self.given.loss_updates):
            calls = self.calls("packed", self.steps())
            found.append(self.update(calls, number)[0])
        return self.torch.stack(found).tolist()

    def balance(self) -> dict:
        """Of updates all over the epoch lists over the processes; means over these, and of the whole epoch as planned.
        At the end of an epoch some have nothing left."""
        lines = []
        last = self.packers[0].steps - 1
        for number in range(self.given.balance_steps + 1):
            for packer in self.packers:
                step = last * max(number - 1, 0) // max(self.given.balance_steps - 1, 1)
                packer.load_state_dict({**packer.state_dict(), "epoch": 0, "step": step})
            steps = self.steps()
            calls = self.calls("packed", steps)
            self.processes.wait()
            began = time.perf_counter()
            waited = self.update(calls, 0, measure=True)[1]
            self.processes.wait()
            lengths = [int(length) for pieces, _ in steps for length in pieces["length"]]
            line = self.processes.gather({"tokens": sum(lengths), "longest": max(lengths, default=0),
                                          "waited_seconds": waited, "seconds": time.perf_counter() - began})
            if number:  # the first compiles
                lines.append({name: [rank[name] for rank in line] for name in line[0]})

        def spread(name):
            return statistics.mean((max(line[name]) - min(line[name])) / max(line[name]) for line in lines)
        planned = self.packers[0].statistics()
        result = {"epoch": {"updates": last + 1, **{name: planned[name] for name in
                                                    ("fill_rate", "mean_token_spread", "mean_longest_spread")}},
                  "token_spread": spread("tokens"), "longest_spread": spread("longest"), "updates": lines}
        if lines[0]["waited_seconds"][0] is not None:
            result["waited_share"] = statistics.mean(statistics.mean(line["waited_seconds"]) / max(line["seconds"])
                                                     for line in lines)
        return result


def worker(given) -> None:
    """Everything on one number of processes. The file is written anew after each part: what is measured stays."""
    train = load_example()
    processes = train.Processes(given.device, given.timeout)

    def of(calls=processes.count, **more):
        return Run(given, train, processes, calls, **more)
    parts = [("ways", way, lambda way=way: of().speed(way)) for way in given.ways]
    parts.insert(1, ("loss", "losses", lambda: of(given.rows).losses()))
    if processes.count == 1:
        parts.insert(2, ("loss", "turned", lambda: of(given.rows, turned=True).losses()))
    else:
        parts[2:2] = [("balance", division, lambda division=division: of(division=division).balance())
                      for division in ("balanced", "round-robin")]
    report = {"ways": {}, "loss": {}, "balance": {}}
    for part, name, measured in parts:
        report[part][name] = measured()
        gc.collect()
        if given.device == "cuda":
            import torch
            torch.cuda.empty_cache()
        if processes.is_first:
            write_whole(given.worker, json.dumps(report))
            print(f"{given.model[0]}, {processes.count}: {part} {name} done", file=sys.stderr)
    processes.end()


# --- the launcher -------------------------------------------------------------------------------------------------


def launched(given, size: str, count: int) -> dict:
    """What the processes wrote; "failed" where they ended early."""
    with tempfile.TemporaryDirectory() as folder:
        result, lengths = pathlib.Path(folder) / "result.json", pathlib.Path(folder) / "lengths.txt"
        lengths.write_text("\n".join(map(str, given.lengths)))
        arguments = [value for name in ("tokens", "cut", "padded_rows", "steps", "repeats", "balance_steps",
                                        "loss_updates", "rows", "timeout", "seed", "device")
                     for value in (f"--{name.replace('_', '-')}", str(getattr(given, name)))]
        arguments += ["--lengths", str(lengths)]
        arguments += [f"--{name}" for name in ("shard", "checkpoints") if getattr(given, name)]
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)] if count > 1 else []
        done = subprocess.run(
            [sys.executable, *torchrun, __file__, "--model", size, "--ways", *given.ways, "--gpus", str(count),
             *arguments, "--worker", str(result)], env=environment, stderr=subprocess.PIPE, text=True)
        sys.stderr.write(done.stderr)
        report = json.loads(result.read_text()) if result.exists() else {"ways": {}, "loss": {}, "balance": {}}
    if done.returncode:
        causes = [line for line in done.stderr.splitlines() if "Error" in line and "ChildFailedError" not in line]
        report["failed"] = (causes or done.stderr.splitlines() or ["no message"])[-1][:300]
    return report


def compared(model: dict) -> dict:
    """Efficiencies, and losses against one GPU. `model`: the reports by number of GPUs."""
    counts = sorted(model, key=int)
    result = {"efficiency": {}, "loss_difference": {}}
    for way in WAYS:
        speeds = {count: model[count]["ways"][way]["tokens_per_second"] for count in counts
                  if way in model[count]["ways"]}
        if speeds:
            base = next(iter(speeds.values()))
            result["efficiency"][way] = {count: speed / base for count, speed in speeds.items()}
    of_one = model.get("1", {}).get("loss", {})
    if "losses" in of_one:
        result["loss_difference"] = {count: difference(of_one["losses"], model[count]["loss"]["losses"])
                                     for count in counts if count != "1" and "losses" in model[count]["loss"]}
    if "turned" in of_one:
        result["order_difference"] = difference(of_one["losses"], of_one["turned"])
        result["allowed_difference"] = max(ALLOWED * result["order_difference"], ROUNDING)
    return result


def differs(result: dict) -> bool:
    return any(not found <= result.get("allowed_difference", ROUNDING) for found in result["loss_difference"].values())


def add(old: dict, report: dict, path: pathlib.Path) -> None:
    """What was measured before goes into the report, where it is of the same kind."""
    def kind(of):
        return {"GPU": of["gpu"].get("name"), **{name: of[name] for name in ("device", "torch", *SETTINGS)}}
    others = [f"{name} {value}, now {kind(report)[name]}" for name, value in kind(old).items()
              if value != kind(report)[name]]
    if others:
        raise SystemExit(f"--add: {path} is of other settings: {'; '.join(others)}. Give the same, or another --json")
    report["models"], report["compared"] = old["models"], old["compared"]
    report["command"] = f"{old['command']}; {report['command']}"


def table(report: dict) -> str:
    unit, units = UNITS[report["device"]]
    lines = [f"| model | {units} | way | real tokens/s a {unit} | efficiency | peak GiB |",
             "| --- | --- | --- | --- | --- | --- |"]
    notes = []
    for size, model in report["models"].items():
        result = report["compared"][size]
        for count, found in sorted(model.items(), key=lambda item: int(item[0])):
            for way, speed in found["ways"].items():
                memory = f"{speed['peak_memory_gib']:.1f}" if speed["peak_memory_gib"] is not None else ""
                lines.append(f"| {size} | {count} | {way} | {speed['tokens_per_second']:,.0f} "
                             f"({speed['least_tokens_per_second']:,.0f} to {speed['most_tokens_per_second']:,.0f}) | "
                             f"{result['efficiency'][way][count]:.1%} | {memory} |")
            for division, balance in found["balance"].items():
                waited = f", waiting {balance['waited_share']:.1%} of the time" if "waited_share" in balance else ""
                epoch = balance["epoch"]
                notes.append(f"{size}, {count} {units}, {division}: an epoch of {epoch['updates']} updates, within one "
                             f"tokens differ by {epoch['mean_token_spread']:.1%}, longest sequences by "
                             f"{epoch['mean_longest_spread']:.1%}{waited}")
            if "failed" in found:
                notes.append(f"{size}, {count} {units}: ended early: {found['failed']}")
        for count, largest in result["loss_difference"].items():
            notes.append(f"{size}, {count} {units}: losses differ from those of one by {largest:.2e} at most; "
                         f"{result.get('order_difference', 0):.2e} from the order of sums alone, "
                         f"{result.get('allowed_difference', ROUNDING):.2e} allowed")
    if report["device"] == "cpu":
        notes.append("These are figures of CPU processes on host execution: they say nothing about a GPU.")
    return "\n".join([*lines, *notes])


def draw(report: dict, path: pathlib.Path) -> None:
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import ScalarFormatter
    unit, units = UNITS[report["device"]]
    sizes = [size for size, result in report["compared"].items() if result["efficiency"]]
    if not sizes:
        print(f"--plot {path}: nothing was timed, so there is nothing to draw", file=sys.stderr)
        return
    figure, axes = pyplot.subplots(1, len(sizes), figsize=(4.6 * len(sizes), 3.6), squeeze=False, layout="constrained")
    colors = {"packed": "tab:orange", "padded": "tab:blue", "one": "tab:gray"}
    for panel, size in zip(axes[0], sizes):
        model = report["models"][size]
        for way, efficiency in report["compared"][size]["efficiency"].items():
            counts = [int(count) for count in efficiency]
            speeds = [model[count]["ways"][way]["tokens_per_second"] / 1e3 for count in efficiency]
            panel.plot(counts, speeds, marker="o", label=way, color=colors[way])
            panel.annotate(f"{list(efficiency.values())[-1]:.0%}", (counts[-1], speeds[-1]), fontsize=8,
                           xytext=(0, 5), textcoords="offset points", ha="center")
        panel.set(title=size, xlabel=units, xscale="log", ylim=(0, None),
                  ylabel=f"thousand real tokens/s a {unit}" if size == sizes[0] else "")
        panel.set_xticks(sorted(int(count) for count in model))
        panel.xaxis.set_major_formatter(ScalarFormatter())
        panel.minorticks_off()
        panel.legend(fontsize=8)
    where = report["gpu"].get("name", "GPUs") if report["device"] == "cuda" else "CPU processes, no GPU"
    figure.suptitle(f"Data-parallel training, {where}, a row of {report['tokens']:,} tokens each; "
                    "at the end of a line its efficiency", fontsize=9)
    save_figure(figure, path)


def main(arguments=None) -> int:
    given = options(arguments)
    if torch_is_missing("scaling.py"):
        return MISSING
    import torch
    if given.worker:
        worker(given)
        return 0
    if given.device == "cuda":
        there = torch.cuda.device_count()
        beyond = [count for count in given.gpus if count > there]
        given.gpus = [count for count in given.gpus if count <= there]
        if not given.gpus:
            print(f"scaling.py: it was asked for {', '.join(map(str, beyond))} GPUs, and PyTorch can use {there}. "
                  "--device cpu --model tiny --tokens 64 --cut 16 --gpus 1 2 tries it out on processes of the CPU.",
                  file=sys.stderr)
            return MISSING
        if beyond:
            print(f"scaling.py: not measured on {', '.join(map(str, beyond))} GPUs: PyTorch can use {there}",
                  file=sys.stderr)
    report = {**opening("scaling.py", arguments, given.device), "unit": UNITS[given.device][0],
              **{name: getattr(given, name) for name in SETTINGS}, "models": {}, "compared": {}}
    if given.add and given.json.exists():
        add(json.loads(given.json.read_text()), report, given.json)
    for size in given.model:
        report["models"].setdefault(size, {})
        for count in given.gpus:
            report["models"][size][str(count)] = launched(given, size, count)
            report["compared"][size] = compared(report["models"][size])
            if given.json:  # after each: what is measured stays if a later one fails
                write_whole(given.json, json.dumps(report, indent=1) + "\n")
    print(table(report))
    if given.plot:
        draw(report, given.plot)
    failed = any("failed" in found for model in report["models"].values() for found in model.values())
    return FAILED if failed or any(differs(result) for result in report["compared"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
