#!/usr/bin/env python3
"""Trains a Mamba language model on packs: variable-length documents side by side in rows without padding.

    python examples/train_mamba.py --text docs --out /tmp/run
    torchrun --nproc-per-node 8 examples/train_mamba.py --text corpus/ --model 1.4b --pack-length 16384 --out run

--text is a folder, in which every file is one document, or a file, in which blank lines part the documents. Tokens are
bytes, and one more that ends a document. docs/training.md explains the options, the log and the checkpoint.

Read main() first: it is the whole training loop. One update is made of --calls-per-update packed calls, however many
processes share them, so a run gives the same numbers on one GPU as on eight.
"""

import argparse
import contextlib
import dataclasses
import json
import math
import os
import pathlib
import sys
import time
from collections.abc import Callable
from typing import BinaryIO

import numpy
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

from packjit.packing import METHODS, Packer, Step
from packjit.torch import CONFIGURATIONS, MambaConfig, MambaLM, SequenceMap

END_OF_DOCUMENT = 256  # the first token that is no byte
VOCABULARY = 257
SIZES = {"tiny": MambaConfig(32, 2), "small": MambaConfig(256, 6), **CONFIGURATIONS}


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="train_mamba.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=pathlib.Path, required=True, help="folder of documents, or one file of them")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder of log, plot and checkpoint")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    parser.add_argument("--model", choices=SIZES, default="small")
    parser.add_argument("--pack-length", type=int, default=4096, help="tokens of a row")
    parser.add_argument("--rows", type=int, default=1, help="rows of a call")
    parser.add_argument("--method", choices=METHODS, default="balanced", help="of packing: docs/packing.md")
    parser.add_argument("--calls-per-update", type=int, help="packed calls of one update; default: one a process")
    parser.add_argument("--updates", type=int, default=200, help="of the whole run")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--warm-up", type=int, default=20, help="updates until the learning rate is reached")
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--clip", type=float, default=1.0, help="largest norm of the gradient")
    parser.add_argument("--dtype", choices=("bf16", "fp32"), help="of the arithmetic; default bf16 on a GPU, else fp32")
    parser.add_argument("--no-fuse", action="store_true", help="norms and loss without torch.compile")
    parser.add_argument("--shard", action="store_true", help="FSDP: parameters divided over the processes, not copied")
    parser.add_argument("--document-loss", action="store_true", help="documents weigh alike; else tokens do")
    parser.add_argument("--log-every", type=int, default=10, help="updates a line of the log covers")
    parser.add_argument("--checkpoint-every", type=int, default=100, help="updates")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args(arguments)
    for name in ("rows", "pack_length", "calls_per_update", "log_every", "checkpoint_every"):
        value = getattr(given, name)
        if value is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')} is {value}, expected 1 or more")
    if not given.clip > 0:
        parser.error(f"--clip is {given.clip}, expected more than 0; inf clips nothing")
    if given.out.resolve().is_relative_to(given.text.resolve()):
        parser.error(f"--out {given.out} lies in --text {given.text}: log and checkpoint would become documents")
    given.dtype = given.dtype or ("bf16" if given.device == "cuda" else "fp32")
    return given


# --- data ---------------------------------------------------------------------------------------------------------


def tokens_of(documents: list[bytes]) -> tuple[numpy.ndarray, numpy.ndarray]:
    """All documents one after the other, each with its end, as tokens (int64); and the tokens of each document."""
    lengths = numpy.array([len(document) + 1 for document in documents], dtype=numpy.int64)
    tokens = numpy.full(lengths.sum(), END_OF_DOCUMENT, dtype=numpy.int64)
    for start, document in zip(numpy.cumsum(lengths) - lengths, documents):
        tokens[start:start + len(document)] = numpy.frombuffer(document, dtype=numpy.uint8)
    return tokens, lengths


def read_documents(path: pathlib.Path) -> list[bytes]:
    """A folder: every file in it, however deep, in the order of their names. A file: what blank lines part."""
    if path.is_dir():
        documents = [file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()]
    elif path.is_file():
        documents = [part.strip(b"\n") for part in path.read_bytes().replace(b"\r\n", b"\n").split(b"\n\n")]
    else:
        raise SystemExit(f"--text {path}: there is no such folder or file")
    documents = [document for document in documents if document]
    if not documents:
        raise SystemExit(f"--text {path}: there is no document in it, only empty ones")
    return documents


@dataclasses.dataclass
class Batch:
    """One packed call: (rows, pack_length) tensors on the device, and counts for the log."""

    input_ids: torch.Tensor  # int64, 0 at padding
    positions: torch.Tensor  # int32: 0, 1, 2... anew in each sequence, -1 at padding
    targets: torch.Tensor  # int64: the next token of the document
    weights: torch.Tensor  # fp32, of each token's loss; 0 at padding and where a document ends
    lengths: numpy.ndarray  # of its sequences


def batch_of(step: Step, tokens: numpy.ndarray, device: torch.device) -> Batch:
    """What the packer planned, with the tokens of the documents."""
    arrays = step.gather(tokens), step.position_indices, step.targets(tokens, padding=0), step.loss_weights
    return Batch(*[torch.from_numpy(array).to(device, non_blocking=True) for array in arrays], step.pieces["length"])


# --- processes ----------------------------------------------------------------------------------------------------


class Processes:
    """This process among those that torchrun started, or alone."""

    def __init__(self, device: str):
        self.count, self.rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
        self.device = torch.device(device, int(os.environ.get("LOCAL_RANK", 0)) if device == "cuda" else None)
        self.is_first = self.rank == 0
        if device == "cuda":
            torch.cuda.set_device(self.device)
        if self.count > 1:
            if device == "cuda":
                dist.init_process_group("nccl", device_id=self.device)
            else:
                dist.init_process_group("gloo")

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Over all processes, in place."""
        if self.count > 1:
            dist.all_reduce(values)
        return values

    def end(self) -> None:
        if self.count > 1:
            dist.destroy_process_group()


def distributed(model: MambaLM, processes: Processes, shard: bool) -> torch.nn.Module:
    """Gradients become means over the processes, either way."""
    if shard:
        if processes.count == 1:
            raise SystemExit("--shard divides parameters over processes, and there is one: start it with torchrun")
        from torch.distributed.fsdp import fully_shard  # of PyTorch 2.6
        for block in model.backbone.layers:
            fully_shard(block)
        return fully_shard(model)
    if processes.count > 1:
        return DistributedDataParallel(model)
    return model


def without_reduction(model: torch.nn.Module) -> contextlib.AbstractContextManager:
    """Gradients only add up here; they are reduced with the last call of an update."""
    return model.no_sync() if isinstance(model, DistributedDataParallel) else contextlib.nullcontext()


# --- optimizer ----------------------------------------------------------------------------------------------------


def optimizer_of(model: torch.nn.Module, given: argparse.Namespace) -> torch.optim.Optimizer:
    """AdamW. Norms, biases, A_log and D do not decay, as in the official recipe."""
    parameters = list(model.named_parameters())
    decays = [p for name, p in parameters if p.dim() >= 2 and not name.endswith("A_log")]
    others = [p for name, p in parameters if p.dim() < 2 or name.endswith("A_log")]
    return torch.optim.AdamW([{"params": decays, "weight_decay": given.weight_decay},
                              {"params": others, "weight_decay": 0.0}], lr=given.learning_rate, betas=(0.9, 0.95),
                             fused=given.device == "cuda")


def learning_rate(update: int, given: argparse.Namespace) -> float:
    """Linear up to --learning-rate, then a cosine down to a tenth of it. `update` counts from 0."""
    if update < given.warm_up:
        return given.learning_rate * (update + 1) / given.warm_up
    done = (update - given.warm_up) / max(given.updates - given.warm_up, 1)
    return given.learning_rate * (0.55 + 0.45 * math.cos(math.pi * min(done, 1.0)))


# --- log ----------------------------------------------------------------------------------------------------------


class Monitor:
    """Adds up what happens between two lines of the log. Tensors stay on the device until the line is written."""

    def __init__(self, given: argparse.Namespace, processes: Processes):
        self.given, self.processes = given, processes
        self.begin()

    def begin(self) -> None:
        self.started, self.losses, self.norms, self.lengths, self.slots = time.perf_counter(), [], [], [], 0

    def add(self, loss: torch.Tensor, norm: torch.Tensor, batches: list[Batch]) -> None:
        self.losses.append(loss)
        self.norms.append(norm)
        self.lengths += [batch.lengths for batch in batches]
        self.slots += sum(batch.input_ids.numel() for batch in batches)

    def line(self, update: int, rate: float, packer: Packer) -> dict:
        """Of the updates since the last line. Waits for the device."""
        updates = len(self.losses)
        losses = torch.stack(self.losses).tolist()
        norms = torch.stack(self.norms).tolist()
        seconds = time.perf_counter() - self.started
        lengths = numpy.concatenate(self.lengths).astype(numpy.float64)
        sums = self.processes.sum(torch.tensor([lengths.sum(), lengths.size, (lengths ** 2).sum(), self.slots],
                                               dtype=torch.float64, device=self.processes.device))
        tokens, sequences, squares, slots = sums.tolist()
        mean = tokens / max(sequences, 1)
        line = {"type": "update", "update": update, "epoch": packer.state_dict()["epoch"], "loss": losses[-1],
                "mean_loss": sum(losses) / updates, "gradient_norm": norms[-1], "largest_gradient_norm": max(norms),
                "learning_rate": rate, "tokens_per_gpu_per_second": tokens / seconds / self.processes.count,
                "fill_rate": tokens / slots, "sequences_per_pack": sequences * self.given.pack_length / slots,
                "length_mean": mean, "length_deviation": math.sqrt(max(squares / max(sequences, 1) - mean * mean, 0.0)),
                "batch_tokens": tokens / updates, "batch_sequences": sequences / updates}
        if self.processes.device.type == "cuda":
            line["memory_gib"] = torch.cuda.max_memory_allocated() / 2 ** 30
        self.begin()
        return line


class Log:
    """OUT/log.jsonl of the first process. On resuming, lines behind the checkpoint are dropped: they come again."""

    def __init__(self, given: argparse.Namespace, processes: Processes, done: int, header: dict):
        self.path = given.out / "log.jsonl"
        self.file = self.bar = None
        if not processes.is_first:
            return
        kept = []
        if done and self.path.exists():
            lines = [line for line in self.path.read_text().splitlines() if line.endswith("}")]
            kept = [line for line in lines if json.loads(line).get("update", 0) <= done]
        replace_file(self.path, lambda file: file.write("".join(line + "\n" for line in kept).encode()))
        self.file = self.path.open("a")
        self.write({"type": "run", "done": done, **header})
        if sys.stderr.isatty():
            try:
                from tqdm import tqdm
                self.bar = tqdm(total=given.updates, initial=done, unit="update")
            except ImportError:
                print("no progress bar: tqdm is not installed", file=sys.stderr)

    def write(self, line: dict) -> None:
        if self.file:
            self.file.write(json.dumps(line) + "\n")
            self.file.flush()

    def update(self, line: dict | None) -> None:
        """After every update; `line` where one is due."""
        if line:
            self.write(line)
        if self.bar is not None:
            self.bar.update()
            if line:
                self.bar.set_postfix(loss=f"{line['mean_loss']:.3f}",
                                     tokens=f"{line['tokens_per_gpu_per_second']:,.0f}/s a GPU")
        elif line and self.file:
            print(f"update {line['update']}: loss {line['mean_loss']:.4f}, gradient norm {line['gradient_norm']:.3f}, "
                  f"{line['tokens_per_gpu_per_second']:,.0f} tokens/s a GPU, filled {line['fill_rate']:.1%}",
                  file=sys.stderr)

    def end(self) -> None:
        if self.bar is not None:
            self.bar.close()
        if self.file:
            self.file.close()
            plot_loss(self.path)


def plot_loss(log: pathlib.Path) -> None:
    """Draws the losses of a log beside it, where matplotlib is installed."""
    try:
        import matplotlib
    except ImportError:
        print(f"no plot of {log}: matplotlib is not installed", file=sys.stderr)
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot
    lines = [line for line in map(json.loads, log.read_text().splitlines()) if line["type"] == "update"]
    figure, axes = pyplot.subplots(figsize=(7, 4))
    axes.plot([line["update"] for line in lines], [line["mean_loss"] for line in lines])
    axes.set(xlabel="update", ylabel="loss (nats a token)")
    figure.savefig(log.with_name("loss.png"), dpi=120, bbox_inches="tight")


# --- checkpoint ---------------------------------------------------------------------------------------------------


def replace_file(path: pathlib.Path, write: Callable[[BinaryIO], object]) -> None:
    """The file is either as it was or complete: written aside, synced, then renamed."""
    aside = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with aside.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


def save_checkpoint(given, processes: Processes, model, optimizer, packer: Packer, done: int) -> None:
    """Parameters and optimizer states in full, whatever they were divided over, and where the packer stands."""
    model_state, optimizer_state = get_state_dict(model, optimizer, options=WHOLE)  # all processes take part
    if processes.is_first:
        state = {"format": "packjit-training", "version": 1, "done": done, "model": model_state,
                 "optimizer": optimizer_state, "packer": packer.state_dict()}  # all packers stand at the same step
        replace_file(given.out / "checkpoint.pt", lambda file: torch.save(state, file))


def load_checkpoint(given, model, optimizer) -> dict:
    path = given.out / "checkpoint.pt"
    if not path.is_file():
        raise SystemExit(f"--resume: there is no {path}; leave --resume out to begin anew")
    state = torch.load(path, map_location="cpu", weights_only=True)
    if state.get("format") != "packjit-training" or state.get("version") != 1:
        raise SystemExit(f"--resume: {path} is not a checkpoint of this program, version 1")
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"],
                   options=WHOLE)
    return state


# --- training -----------------------------------------------------------------------------------------------------


def packers_of(given, processes: Processes, lengths: numpy.ndarray) -> list[Packer]:
    """A packer for each of the calls that this process makes in an update. Together they see every document once."""
    calls = given.calls_per_update or processes.count
    if calls % processes.count:
        raise SystemExit(f"--calls-per-update is {calls}, which {processes.count} processes cannot share evenly: "
                         f"give a multiple of {processes.count}")
    mine = range(processes.rank * calls // processes.count, (processes.rank + 1) * calls // processes.count)
    return [Packer(lengths, method=given.method, pack_length=given.pack_length, rows=given.rows, ranks=calls, rank=rank,
                   seed=given.seed, loss_unit="document" if given.document_loss else "token") for rank in mine]


def main(arguments: list[str] | None = None) -> None:
    given = options(arguments)
    processes = Processes(given.device)
    if not given.resume and (given.out / "checkpoint.pt").exists():
        raise SystemExit(f"--out {given.out} holds a checkpoint: give --resume to go on from it, or another folder")
    given.out.mkdir(parents=True, exist_ok=True)
    tokens, lengths = tokens_of(read_documents(given.text))
    packers = packers_of(given, processes, lengths)

    torch.manual_seed(given.seed)  # the same parameters in every process
    config = dataclasses.replace(SIZES[given.model], vocab_size=VOCABULARY)
    model = distributed(MambaLM(config, device=processes.device, fuse=not given.no_fuse), processes, given.shard)
    optimizer = optimizer_of(model, given)
    done = 0
    if given.resume:
        state = load_checkpoint(given, model, optimizer)
        done = state["done"]
        for packer in packers:
            packer.load_state_dict(state["packer"])
        del state

    log = Log(given, processes, done, {"parameters": sum(p.numel() for p in model.parameters()),
                                       "documents": len(lengths), "tokens": len(tokens),
                                       "processes": processes.count,
                                       "options": {key: str(value) if isinstance(value, pathlib.Path) else value
                                                   for key, value in vars(given).items()}})
    monitor = Monitor(given, processes)
    autocast = torch.autocast(processes.device.type, dtype=torch.bfloat16, enabled=given.dtype == "bf16")
    seq_map = None
    for update in range(done, given.updates):
        batches = [batch_of(packer.next(), tokens, processes.device) for packer in packers]
        # The loss is a mean over the tokens of all calls of all processes. A mean in each call would weigh
        # a token more where a call happens to hold fewer of them.
        weight = processes.sum(torch.stack([batch.weights.sum() for batch in batches]).sum())
        weight = torch.where(weight > 0, weight, 1)  # no token has a next one, as in a rest of one token: a loss of 0

        loss = torch.zeros((), device=processes.device)
        for batch in batches:
            # Where sequences begin is the same for all layers, so it is worked out once a call. With the
            # packer's limits, the GPU does it and the host waits for nothing.
            if seq_map is None:
                seq_map = SequenceMap.from_position_indices(batch.positions, max_sequences=packers[0].max_sequences,
                                                            max_seqlen=packers[0].max_seqlen)
            else:
                seq_map.update(batch.positions)
            last = batch is batches[-1]
            with contextlib.nullcontext() if last else without_reduction(model):
                with autocast:
                    part = model(batch.input_ids, seq_map, targets=batch.targets, weights=batch.weights) / weight
                (part * processes.count).backward()  # reduction takes the mean over processes, and a sum is wanted
            loss += part.detach()

        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), given.clip)
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        rate = learning_rate(update, given)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

        monitor.add(processes.sum(loss), norm, batches)
        ended = update + 1 == given.updates
        keep = ended or (update + 1) % given.checkpoint_every == 0
        # With a line at every checkpoint, the lines of a resumed run are those of one that was never interrupted.
        is_due = keep or (update + 1) % given.log_every == 0
        line = monitor.line(update + 1, rate, packers[0]) if is_due else None
        log.update(line)
        if line and not math.isfinite(line["mean_loss"] + line["largest_gradient_norm"]):
            raise SystemExit(f"the loss or the gradient is no number in the updates up to {update + 1}: {given.out} "
                             "keeps the last checkpoint; go on from there with a lower --learning-rate or --clip")
        if keep:
            save_checkpoint(given, processes, model, optimizer, packers[0], update + 1)
    log.end()
    processes.end()


if __name__ == "__main__":
    main()
