#!/usr/bin/env python3
"""Trains the same model twice on the same documents in the same order, packed and one sequence at a time, and draws
both losses.

    python bench/loss_curves.py --text docs --json bench/results/h200_loss_curves.json --plot docs/loss_curves.svg
    python bench/loss_curves.py --text docs --device cpu --model tiny --pack-length 64 --updates 3

An update of one sequence at a time adds up the gradients of the documents that the packed update holds in its row, so
both have the same effective batch; the optimizer, its learning rates and the initial parameters are those of
examples/train_mamba.py. The losses differ by rounding only: the report has the largest difference, and exit status 4
says that it is above --tolerance. Exit status 3 without a GPU, unless --device cpu is asked for.
"""

import argparse
import json
import os
import pathlib
import sys
import time

from reports import (FAILED, MISSING, difference, load_example, opening, output_file, plot_file, save_figure,
                     torch_is_missing, write_whole)


def options(arguments) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="loss_curves.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=pathlib.Path, required=True, help="folder of documents, or one file of them")
    parser.add_argument("--model", default="small", help="a size of examples/train_mamba.py")
    parser.add_argument("--pack-length", type=int, default=4096)
    parser.add_argument("--cut", type=int, help="longest sequence; default a quarter of the pack length")
    parser.add_argument("--updates", type=int, default=300)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--tolerance", type=float, default=0.1, help="largest difference, in nats, that passes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--json", type=output_file, help="write the report to this file")
    parser.add_argument("--plot", type=plot_file, help="draw both curves, by the ending of the name")
    return parser.parse_args(arguments)


def packed(batch, seq_maps):
    """The row as it is: one call."""
    yield batch.input_ids, seq_maps.of_row(batch.positions), batch.targets, batch.weights


def one_at_a_time(batch, seq_maps):
    """A call for each sequence of the row, from left to right."""
    begin = 0
    for length in batch.lengths.tolist():
        part = slice(begin, begin + length)
        yield batch.input_ids[:, part], seq_maps.of_one(length), batch.targets[:, part], batch.weights[:, part]
        begin += length


class SequenceMaps:
    """Maps made once: one for all packed rows, one for each length."""

    def __init__(self, row_map, device):
        self.of_row, self.device, self.ones = row_map.of, device, {}

    def of_one(self, length):
        from packjit.torch import SequenceMap
        if length not in self.ones:
            self.ones[length] = SequenceMap.rows(1, length, self.device)
        return self.ones[length]


def trained(given, calls_of) -> dict:
    """Losses of all updates, and how many sequences and tokens they had."""
    import dataclasses

    import torch

    from packjit.packing import Packer
    from packjit.torch import MambaLM
    train = load_example()
    tokens, lengths = train.tokens_of(train.read_documents(given.text))
    packer = Packer(lengths, method="local-greedy", pack_length=given.pack_length, seed=given.seed,
                    cut=given.cut or given.pack_length // 4)
    device = torch.device(given.device)
    torch.manual_seed(given.seed)
    model = MambaLM(dataclasses.replace(train.SIZES[given.model], vocab_size=train.VOCABULARY), device=device)
    # Of its files it writes and reads none here, whatever --text is.
    settings = train.options(["--text", os.devnull, "--out", ".", "--updates", str(given.updates), "--device",
                              given.device, "--learning-rate", str(given.learning_rate)])
    optimizer = train.optimizer_of(model, settings)
    autocast = torch.autocast(device.type, dtype=torch.bfloat16, enabled=given.dtype == "bf16")
    seq_maps, losses, sequences, real = SequenceMaps(train.RowMap(packer), device), [], 0, 0
    began = time.perf_counter()
    for update in range(given.updates):
        batch = train.batch_of(packer.next(), tokens, device)
        weight = batch.weights.sum()
        loss = torch.zeros((), device=device)
        for input_ids, seq_map, targets, weights in calls_of(batch, seq_maps):
            with autocast:
                part = model(input_ids, seq_map, targets=targets, weights=weights) / weight
            part.backward()
            loss += part.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        for group in optimizer.param_groups:
            group["lr"] = train.learning_rate(update, settings)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss)
        sequences, real = sequences + len(batch.lengths), real + int(batch.lengths.sum())
    losses = torch.stack(losses).tolist()
    return {"losses": losses, "sequences_per_update": sequences / given.updates,
            "tokens_per_update": real / given.updates,
            "seconds": time.perf_counter() - began if given.device == "cuda" else None}


def draw(report: dict, path: pathlib.Path) -> None:
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, (losses, difference) = pyplot.subplots(2, 1, figsize=(7, 5), sharex=True, height_ratios=(3, 1))
    updates = range(1, len(report["packed"]["losses"]) + 1)
    losses.plot(updates, report["one_at_a_time"]["losses"], label="one sequence at a time", linewidth=2.5,
                color="tab:gray")
    losses.plot(updates, report["packed"]["losses"], label="packed", linewidth=1, color="tab:orange")
    losses.set_ylabel("loss (nats a token)")
    losses.legend()
    difference.plot(updates, [a - b for a, b in zip(report["packed"]["losses"], report["one_at_a_time"]["losses"])],
                    linewidth=1, color="tab:orange")
    difference.set(xlabel="update", ylabel="difference")
    save_figure(figure, path)


def main(arguments=None) -> int:
    given = options(arguments)
    if torch_is_missing("loss_curves.py"):
        return MISSING
    import torch
    if given.device == "cuda" and not torch.cuda.is_available():
        print("loss_curves.py: there is no GPU that PyTorch can use; --device cpu --model tiny --pack-length 64 "
              "--updates 3 tries the script out", file=sys.stderr)
        return MISSING
    report = {**opening("loss_curves.py", arguments, given.device), "dtype": given.dtype,
              "packed": trained(given, packed), "one_at_a_time": trained(given, one_at_a_time)}
    pairs = list(zip(report["packed"]["losses"], report["one_at_a_time"]["losses"]))
    differences = [abs(one - other) for one, other in pairs]
    report["largest_difference"] = difference(report["packed"]["losses"], report["one_at_a_time"]["losses"])
    last = max(len(pairs) // 10, 1)
    report["mean_difference"] = sum(differences) / len(differences)
    report["last_tenth"] = {"packed": sum(one for one, _ in pairs[-last:]) / last,
                            "one_at_a_time": sum(other for _, other in pairs[-last:]) / last}
    if given.json:
        write_whole(given.json, json.dumps(report, indent=1) + "\n")
    if given.plot:
        draw(report, given.plot)
    print(f"{len(pairs)} updates of {report['packed']['tokens_per_update']:,.0f} tokens in "
          f"{report['packed']['sequences_per_update']:.1f} sequences: losses differ by "
          f"{report['largest_difference']:.2e} at most, {report['mean_difference']:.2e} in the mean; in the last tenth "
          f"they are {report['last_tenth']['packed']:.4f} packed and {report['last_tenth']['one_at_a_time']:.4f} one "
          "at a time")
    return 0 if report["largest_difference"] <= given.tolerance else FAILED


if __name__ == "__main__":
    sys.exit(main())
