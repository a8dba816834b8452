#!/usr/bin/env python3
"""Times whole training steps, forward and backward, of Mamba language models on real document lengths.

    python bench/train_step.py --json bench/results/h200_train_step.json --plot bench/results/h200_train_step.svg
    python bench/train_step.py --model 1.4b --repeats 10
    python bench/train_step.py --device cpu --model tiny --tokens 64 --cut 16      the same work, without times

Every way computes the same documents, with the same kernels and bf16 parameters, no recompute and no optimizer:

    packed      all documents in one row
    ideal       as many tokens in full rows of --cut, no boundaries: what packing could reach at most
    padded      each document in a row of --cut tokens, --padded-rows rows a micro-batch, gradients added up
    one         a forward and backward for each document, gradients added up

and, where mamba_ssm and causal_conv1d can be imported, official_ideal, official_padded and official_one with their
model and kernels. Tokens a second count real tokens. Rounds are interleaved, all ways one after the other, and medians
of CUDA events given; what is not worth a kernel of its own (norms, loss) goes through torch.compile. Shares are sums of
kernel times in a profile of one step. Exit status 3 without a GPU, 4 where a way failed (out of memory); the others
are reported.
"""

import argparse
import gc
import json
import pathlib
import random
import statistics
import sys
import time

from lengths import DATA, REAL_CUT, lengths_file, pieces_of
from reports import (FAILED, MISSING, gpu, opening, output_file, plot_file, save_figure, torch_is_missing,
                     write_whole)

WAYS = ("packed", "ideal", "padded", "one", "official_ideal", "official_padded", "official_one")
# The first pattern found in a kernel's name says where its time goes; everything else is "rest".
SHARES = (("scan", ("ssm_pack", "selective_scan")), ("convolution", ("conv1d_pack", "causal_conv1d")),
          ("GEMM", ("gemm", "nvjet", "cutlass", "cublas", "splitk")))


def options(arguments=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="train_step.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=["130m", "1.4b", "2.8b"], help="sizes; tiny is for trying out")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--tokens", type=int, default=16384, help="of the packed row")
    parser.add_argument("--cut", type=int, default=REAL_CUT, help="longest document and length of padded and full rows")
    parser.add_argument("--padded-rows", type=int, default=8, help="rows of a padded micro-batch")
    parser.add_argument("--lengths", type=lengths_file, default=str(DATA), help="file or pipe with the tokens of a "
                        "document on each line")
    parser.add_argument("--seed", type=int, default=0, help="which documents")
    parser.add_argument("--repeats", type=int, default=7, help="rounds, at most")
    parser.add_argument("--budget", type=float, default=300, help="seconds for all rounds; three rounds run anyway")
    parser.add_argument("--checkpoints", action="store_true", help="the scan keeps states for its backward")
    parser.add_argument("--residual-dtype", choices=("fp32", "bf16"), default="fp32", help="of what layers add up")
    parser.add_argument("--no-fuse", action="store_true", help="norms and loss without torch.compile")
    parser.add_argument("--no-profile", action="store_true", help="no shares")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--json", type=output_file, help="write the report to this file")
    parser.add_argument("--plot", type=plot_file, help="draw it, by the ending of the name")
    return parser.parse_args(arguments)


def documents(given) -> list[int]:
    """Lengths of documents, cut as packing would, that fill one row of --tokens as well as any do."""
    pieces = pieces_of(given.lengths, given.cut)
    random.Random(given.seed).shuffle(pieces)
    chosen, room = [], given.tokens
    for piece in pieces:
        if piece <= room:
            chosen.append(piece)
            room -= piece
    return chosen


class Work:
    """One size on one device: what each way runs."""

    def __init__(self, given, size: str, lengths: list[int]):
        import torch

        import micro_batches
        self.torch, self.ways, self.given, self.lengths = torch, micro_batches, given, lengths
        self.config = micro_batches.config_of(size)
        self.device, self.dtype = torch.device(given.device), torch.bfloat16
        generator = torch.Generator(device=given.device).manual_seed(given.seed)
        self.tokens = torch.randint(self.config.vocab_size, (max(given.tokens, sum(lengths)),), generator=generator,
                                    device=given.device)
        self.model = None
        pieces = list(self.tokens[:sum(lengths)].split(lengths))
        self.own = {"packed": self.packed(pieces), "ideal": self.ideal(),
                    "padded": micro_batches.padded(pieces, given.cut, given.padded_rows),
                    "one": micro_batches.one(pieces)}

    def packed(self, pieces):
        from packjit.torch import SequenceMap
        seq_map = None

        def built(positions):
            nonlocal seq_map
            if seq_map is None:
                seq_map = SequenceMap.from_position_indices(positions, max_sequences=len(self.lengths),
                                                            max_seqlen=self.given.cut)
            else:
                seq_map.update(positions)
            return seq_map
        return self.ways.packed(pieces, self.given.tokens, built)

    def ideal(self):
        rows = self.given.tokens // self.given.cut
        ids = self.tokens[:rows * self.given.cut].view(rows, self.given.cut)
        return [self.ways.of_rows(ids, [self.given.cut] * rows)]

    def real_tokens(self, way: str) -> int:
        return self.own["ideal"][0][1].numel() if way.endswith("ideal") else sum(self.lengths)

    # Models: one of them is on the device at a time.

    def make_own(self) -> None:
        import dataclasses

        from packjit.torch import MambaLM
        config = dataclasses.replace(self.config, residual_in_fp32=self.given.residual_dtype == "fp32")
        self.torch.manual_seed(0)
        self.model = MambaLM(config, device=self.device, dtype=self.dtype, checkpoints=self.given.checkpoints,
                             fuse=not self.given.no_fuse)

    def make_official(self) -> None:
        """mamba_ssm's own model. Only the loss is ours: theirs would need the logits of all tokens in fp32."""
        from mamba_ssm.models.config_mamba import MambaConfig
        from mamba_ssm.models.mixer_seq_simple import MambaLMHeadModel
        config = MambaConfig(d_model=self.config.d_model, n_layer=self.config.n_layer,
                             vocab_size=self.config.vocab_size, ssm_cfg={"layer": "Mamba1"}, rms_norm=True,
                             residual_in_fp32=True, fused_add_norm=True)
        self.torch.manual_seed(0)
        self.model = MambaLMHeadModel(config, device=self.device, dtype=self.dtype)

    def step(self, way: str):
        """One training step without the optimizer. Gives the mean loss."""
        from packjit.torch import linear_cross_entropy
        batches = self.own[way.removeprefix("official_")]
        weight = sum(weights.sum() for *_, weights in batches)
        total = 0.0
        for seq_map, ids, targets, weights in batches:
            if way.startswith("official_"):
                hidden = self.model.backbone(ids)
                loss = linear_cross_entropy(hidden.flatten(0, 1), self.model.lm_head.weight, targets.flatten(),
                                            weights.flatten(), fuse=not self.given.no_fuse)
            else:
                loss = self.model(ids, seq_map(), targets=targets, weights=weights)
            (loss / weight).backward()
            total = total + loss.detach() / weight
        return total

    def timed(self, way: str) -> float:
        """Seconds on the device."""
        cuda = self.torch.cuda
        self.model.zero_grad(set_to_none=True)
        begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        cuda.synchronize()
        begin.record()
        self.step(way)
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3

    def shares(self, way: str) -> dict:
        """Of the kernels' time: GEMM, scan, convolution, rest; and that time in seconds."""
        from torch.profiler import ProfilerActivity, profile
        self.model.zero_grad(set_to_none=True)
        self.torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as found:
            self.step(way)
            self.torch.cuda.synchronize()
        seconds, rest = {}, {}
        for kernel in found.key_averages():
            spent = kernel.self_device_time_total / 1e6
            name = kernel.key.lower()
            share = next((share for share, patterns in SHARES if any(pattern in name for pattern in patterns)), "rest")
            seconds[share] = seconds.get(share, 0.0) + spent
            if share == "rest":
                rest[kernel.key[:80]] = spent
        whole = sum(seconds.values())
        if not whole:
            return {"kernel_seconds": 0.0, "share": {}, "missing": "the profiler saw no kernels"}
        largest = sorted(rest.items(), key=lambda item: -item[1])[:12]
        return {"kernel_seconds": whole, "share": {share: spent / whole for share, spent in sorted(seconds.items())},
                "largest_of_rest_seconds": dict(largest)}


def measure(given, size: str, lengths: list[int], budget: float) -> dict:
    work = Work(given, size, lengths)
    report = {"parameters": None, "ways": {}, "profiles": {}}
    for family, make in (("own", work.make_own), ("official", work.make_official)):
        ways = [way for way in given.ways if way.startswith("official_") == (family == "official")]
        if not ways:
            continue
        try:
            make()
        except ImportError as missing:
            report["official_missing"] = str(missing)
            print(f"{size}: no official baseline: {missing}", file=sys.stderr)
            continue
        if family == "own":
            report["parameters"] = sum(parameter.numel() for parameter in work.model.parameters())
        report["ways"].update(rounds(work, ways, budget, size))
        if given.device == "cuda" and not given.no_profile:
            for way in ("packed", "ideal", "official_ideal"):
                if way in ways and "failed" not in report["ways"][way]:
                    report["profiles"][way] = work.shares(way)
        work.model = None
        gc.collect()
        if given.device == "cuda":
            work.torch.cuda.empty_cache()
            work.torch.compiler.reset()  # the next size gets kernels of its own
    return report


def rounds(work: Work, ways: list[str], budget: float, size: str) -> dict:
    """A round to warm up, which also gives the losses, then interleaved rounds."""
    result = {}
    on_gpu = work.given.device == "cuda"
    for way in ways:
        if on_gpu:
            work.torch.cuda.reset_peak_memory_stats()
        work.model.zero_grad(set_to_none=True)
        began = time.perf_counter()
        try:
            loss = float(work.step(way))
        except RuntimeError as error:  # out of memory, mostly: what the others need is free again
            result[way] = {"failed": str(error).splitlines()[0][:300]}
            print(f"{size} {way}: {error}", file=sys.stderr)
            gc.collect()
            continue
        peak = work.torch.cuda.max_memory_allocated() / 2 ** 30 if on_gpu else None
        result[way] = {"loss": loss, "tokens": work.real_tokens(way), "peak_memory_gib": peak}
        print(f"{size} {way}: loss {loss:.4f}, first step in {time.perf_counter() - began:.1f} s", file=sys.stderr)
    ways = [way for way in ways if "failed" not in result[way]]
    seconds = {way: [] for way in ways}
    began = time.perf_counter()
    for number in range(work.given.repeats if on_gpu else 0):
        if number >= 3 and time.perf_counter() - began > budget:
            break
        for way in ways:
            seconds[way].append(work.timed(way))
    for way in ways:
        if seconds[way]:
            median = statistics.median(seconds[way])
            result[way].update({"median_seconds": median, "shortest_seconds": min(seconds[way]),
                                "longest_seconds": max(seconds[way]), "rounds": len(seconds[way]),
                                "tokens_per_second": work.real_tokens(way) / median})
    return result


def compared(models: dict) -> dict:
    """The ratios that the project promises, for each size."""
    result = {}
    for size, report in models.items():
        speed = {way: found["tokens_per_second"] for way, found in report["ways"].items()
                 if "tokens_per_second" in found}
        packed = speed.pop("packed", None)
        if packed:
            result[size] = {f"packed_over_{way}": packed / other for way, other in speed.items()}
    return result


def table(models: dict) -> str:
    lines = ["| model | way | ms a step | real tokens/s | peak GiB |", "| --- | --- | --- | --- | --- |"]
    for size, report in models.items():
        for way, found in report["ways"].items():
            if "median_seconds" in found:
                median, shortest, longest = [found[name] * 1e3 for name in
                                             ("median_seconds", "shortest_seconds", "longest_seconds")]
                lines.append(f"| {size} | {way} | {median:,.1f} ({shortest:,.1f} to {longest:,.1f}) | "
                             f"{found['tokens_per_second']:,.0f} | {found['peak_memory_gib']:.1f} |")
            else:
                lines.append(f"| {size} | {way} | {found.get('failed', 'not timed: no GPU')} | | |")
        for way, profile in report["profiles"].items():
            shares = ", ".join(f"{share} {part:.1%}" for share, part in profile["share"].items())
            lines.append(f"| {size} | {way}, kernels {profile['kernel_seconds'] * 1e3:,.1f} ms | {shares} | | |")
    return "\n".join(lines)


def draw(report: dict, path: pathlib.Path) -> None:
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    sizes = [size for size, model in report["models"].items()
             if any("tokens_per_second" in found for found in model["ways"].values())]
    if not sizes:
        raise SystemExit(f"--plot {path}: nothing was timed, so there is nothing to draw")
    figure, axes = pyplot.subplots(1, len(sizes), figsize=(4.2 * len(sizes), 3.4), squeeze=False,
                                   layout="constrained")
    for panel, size in zip(axes[0], sizes):
        ways = {way: found["tokens_per_second"] for way, found in report["models"][size]["ways"].items()
                if "tokens_per_second" in found}
        names = [way.replace("_", "\n") for way in ways]
        colors = ["tab:orange" if way == "packed" else "tab:gray" if way.startswith("official") else "tab:blue"
                  for way in ways]
        panel.bar(names, [speed / 1e3 for speed in ways.values()], color=colors)
        panel.set(title=size, ylabel="thousand real tokens/s" if size == sizes[0] else "")
        panel.tick_params(axis="x", labelsize=7)
    figure.suptitle(f"Training steps, {report['gpu'].get('name', 'GPU')}, {report['real_tokens']:,} tokens in "
                    f"{len(report['lengths'])} documents", fontsize=10)
    save_figure(figure, path)


def main(arguments=None) -> int:
    given = options(arguments)
    if torch_is_missing("train_step.py"):
        return MISSING
    import torch
    if given.device == "cuda" and not torch.cuda.is_available():
        print("train_step.py: there is no GPU that PyTorch can use, and times of a CPU would say nothing. "
              "--device cpu --model tiny --tokens 64 --cut 16 runs the same work without times.", file=sys.stderr)
        return MISSING
    lengths = documents(given)
    report = {**opening("train_step.py", arguments, given.device), "dtype": "bf16",
              "residual_dtype": given.residual_dtype,
              "checkpoints": given.checkpoints, "fused": not given.no_fuse, "lengths": lengths,
              "real_tokens": sum(lengths), "models": {}}
    for size in given.model:
        report["models"][size] = measure(given, size, lengths, given.budget / len(given.model))
        report["compared"] = compared(report["models"])
        report["gpu_after"] = gpu() if given.device == "cuda" else {}
        if given.json:  # after each size: what is measured stays if a later one fails
            write_whole(given.json, json.dumps(report, indent=1) + "\n")
    print(table(report["models"]))
    for size, ratios in report["compared"].items():
        print(f"{size}: " + ", ".join(f"{name.replace('_', ' ')} {ratio:.2f}" for name, ratio in ratios.items()))
    if given.plot:
        draw(report, given.plot)
    failed = [way for model in report["models"].values() for way, found in model["ways"].items() if "failed" in found]
    return FAILED if failed else 0


if __name__ == "__main__":
    sys.exit(main())
