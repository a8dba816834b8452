#!/usr/bin/env python3
"""Trains a Mamba language model on packs: variable-length documents side by side in rows without padding.

    python examples/train_mamba.py --text docs --out /tmp/run
    torchrun --nproc-per-node 8 examples/train_mamba.py --text corpus/ --model 1.4b --pack-length 16384 --out run

--text is a folder, in which every file is one document, or a file, in which blank lines part the documents. Tokens are
bytes, and one more that ends a document. docs/training.md explains the options, the log and the checkpoint.

Read train() first: it is the whole training loop. One update is made of --calls-per-update packed calls, however many
processes share them, so a run gives the same numbers on one GPU as on eight.
"""

import argparse
import contextlib
import dataclasses
import datetime
import functools
import json
import math
import os
import pathlib
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import BinaryIO

import numpy
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

from packjit.errors import BadArgument
from packjit.packing import DIVISIONS, METHODS, Packer, Step
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
    parser.add_argument("--division", choices=DIVISIONS, default="balanced", help="of the documents over the calls")
    parser.add_argument("--calls-per-update", type=int, help="packed calls of one update; default: one a process, and "
                        "on resuming those of the checkpoint")
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
    parser.add_argument("--log-ranks", action="store_true", help="for every update a line of what each process had and "
                        "how long it waited; slower, since nothing is reduced beside the backward")
    parser.add_argument("--checkpoint-every", type=int, default=100, help="updates")
    parser.add_argument("--timeout", type=float, default=600, help="seconds that a process waits for the others")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args(arguments)
    for least, names in ((1, ("rows", "pack_length", "calls_per_update", "updates", "log_every", "checkpoint_every")),
                         (0, ("warm_up", "seed"))):
        for name in names:
            value = getattr(given, name)
            if value is not None and value < least:
                parser.error(f"--{name.replace('_', '-')} is {value}, expected {least} or more")
    if not 0 <= given.learning_rate < math.inf:
        parser.error(f"--learning-rate is {given.learning_rate}, expected 0 or more")
    if not given.timeout > 0:
        parser.error(f"--timeout is {given.timeout}, expected more than 0 seconds")
    if not given.clip > 0:
        parser.error(f"--clip is {given.clip}, expected more than 0; inf clips nothing")
    if given.out.resolve().is_relative_to(given.text.resolve()):
        parser.error(f"--out {given.out} lies in --text {given.text}: log and checkpoint would become documents")
    given.dtype = given.dtype or ("bf16" if given.device == "cuda" else "fp32")
    return given


def refused(message: str) -> SystemExit:
    """To raise for an option that cannot be met: says so and ends with status 2, as argparse does."""
    print(f"{pathlib.Path(sys.argv[0]).name}: error: {message}", file=sys.stderr)
    end = SystemExit(message)
    end.code = 2
    return end


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
    try:
        if path.is_dir():
            documents = [file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()]
        elif path.is_file():
            documents = [part.strip(b"\n") for part in path.read_bytes().replace(b"\r\n", b"\n").split(b"\n\n")]
        else:
            raise refused(f"--text {path}: there is no such folder or file; give one that has documents")
    except OSError as error:
        raise refused(f"--text {path} cannot be read: {error}; give what can be, or change who may read it") from error
    documents = [document for document in documents if document]
    if not documents:
        raise refused(f"--text {path}: there is no document in it, or only empty ones; give a folder of files, or a "
                      "file in which blank lines part the documents")
    return documents


@dataclasses.dataclass
class Batch:
    """One packed call: (rows, pack_length) tensors on the device, and counts for the log."""

    input_ids: torch.Tensor  # int64, 0 at padding
    positions: torch.Tensor  # int32: 0, 1, 2... anew in each sequence, -1 at padding
    targets: torch.Tensor  # int64: the next token of the document
    weights: torch.Tensor  # fp32, of each token's loss; 0 at padding and where a document ends
    pieces: numpy.ndarray  # its sequences, of dtype packjit.packing.PIECE

    @property
    def lengths(self) -> numpy.ndarray:
        return self.pieces["length"]


def batch_of(step: Step, tokens: numpy.ndarray, device: torch.device) -> Batch:
    """What the packer planned, with the tokens of the documents."""
    arrays = step.gather(tokens), step.position_indices, step.targets(tokens, padding=0), step.loss_weights
    return Batch(*[torch.from_numpy(array).to(device, non_blocking=True) for array in arrays], step.pieces)


class RowMap:
    """Where sequences begin is the same for all layers, so it is worked out once a call. With the packer's limits, the
    GPU does it and the host waits for nothing."""

    def __init__(self, packer: Packer):
        self.limits, self.map = {"max_sequences": packer.max_sequences, "max_seqlen": packer.max_seqlen}, None

    def of(self, positions: torch.Tensor) -> SequenceMap:
        """Good until the next call."""
        if self.map is None:
            self.map = SequenceMap.from_position_indices(positions, **self.limits)
        else:
            self.map.update(positions)
        return self.map


# --- processes ----------------------------------------------------------------------------------------------------


class Processes:
    """This process among those that torchrun started, or alone. One that waits for another longer than `timeout`
    seconds ends."""

    def __init__(self, device: str, timeout: float = 600):
        self.count, self.rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
        self.device = torch.device(device, int(os.environ.get("LOCAL_RANK", 0)) if device == "cuda" else None)
        self.is_first = self.rank == 0
        if device == "cuda":
            torch.cuda.set_device(self.device)
        if self.count > 1:
            kind = ("nccl", {"device_id": self.device}) if device == "cuda" else ("gloo", {})
            try:
                dist.init_process_group(kind[0], timeout=datetime.timedelta(seconds=timeout), **kind[1])
            except dist.DistError as error:
                raise SystemExit(f"process {self.rank} of {self.count}: the others did not come within {timeout:g} s "
                                 f"(--timeout; {first_line(error)}): look at what they said, and start all of them "
                                 "with torchrun") from error

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Over all processes, in place."""
        if self.count > 1:
            dist.all_reduce(values)
        return values

    def gather(self, value: object) -> list:
        """Of all processes, in the order of their ranks."""
        values = [value] * self.count
        if self.count > 1:
            dist.all_gather_object(values, value)
        return values

    def wait(self) -> float:
        """Seconds until the last process has come here too, its GPU's work done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        if self.count > 1:
            dist.barrier()
        return time.perf_counter() - began

    def end(self) -> None:
        if self.count > 1:
            dist.destroy_process_group()


def distributed(model: MambaLM, processes: Processes, shard: bool) -> torch.nn.Module:
    """Gradients become means over the processes, either way."""
    if shard:
        if processes.count == 1:
            raise refused("--shard divides parameters over processes, and there is one: start it with torchrun")
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


@dataclasses.dataclass
class Call:
    """One forward and backward. The map is made when its turn comes: calls may share the memory of one."""

    seq_map: Callable[[], SequenceMap]
    input_ids: torch.Tensor
    targets: torch.Tensor
    weights: torch.Tensor


def gradients(model: torch.nn.Module, processes: Processes, calls: list[Call], weight: torch.Tensor,
              autocast: contextlib.AbstractContextManager, measure: bool = False) -> tuple[torch.Tensor, float | None]:
    """Of the sum of the loss over the calls of all processes, divided by `weight`, in the parameters. Gives this
    process's part of the loss, and where `measure` asks for it the seconds it waited for the slowest process: its own
    calls are then done before anything is reduced. With parameters that are divided processes wait in every layer, and
    that cannot be told apart: None."""
    loss = torch.zeros((), device=processes.device)
    measure = measure and isinstance(model, DistributedDataParallel)
    for call in calls:
        last = call is calls[-1]
        with contextlib.nullcontext() if last and not measure else without_reduction(model):
            with autocast:
                part = model(call.input_ids, call.seq_map(), targets=call.targets, weights=call.weights) / weight
            (part * processes.count).backward()  # reduction takes the mean over processes, and a sum is wanted
        loss += part.detach()
    waited = None
    if measure:
        waited = processes.wait()
        for parameter in model.parameters():
            processes.sum(parameter.grad).div_(processes.count)
    return loss, waited


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


def ranks_line(processes: Processes, update: int, epoch: int, batches: list[Batch], waited: float | None) -> dict:
    """What each process had in an update: lists in the order of their ranks."""
    pieces = numpy.concatenate([batch.pieces for batch in batches])
    mine = {"tokens": int(pieces["length"].sum()), "longest": int(pieces["length"].max(initial=0)),
            "waited_seconds": waited, "pieces": [[int(piece[name]) for name in ("document", "offset", "length")]
                                                 for piece in pieces]}
    found = processes.gather(mine)
    return {"type": "ranks", "update": update, "epoch": epoch,
            **{name: [rank[name] for rank in found] for name in mine}}


class Log:
    """OUT/log.jsonl of the first process. On resuming, lines behind the checkpoint are dropped: they come again."""

    def __init__(self, given: argparse.Namespace, processes: Processes, done: int, header: dict):
        self.path = given.out / "log.jsonl"
        self.file = self.bar = None
        if not processes.is_first:
            return
        kept = []
        if done and self.path.exists():
            lines = self.path.read_text().splitlines(keepends=True)
            whole = [line for line in lines if line.endswith("\n")]  # the last one of a run that was killed may not be
            kept = [line for line in whole if json.loads(line).get("update", 0) <= done]
        replace_file(self.path, lambda file: file.write("".join(kept).encode()))
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
                                     tokens=f"{line['tokens_per_gpu_per_second']:,.0f}/s a process")
        elif line and self.file:
            print(f"update {line['update']}: loss {line['mean_loss']:.4f}, gradient norm {line['gradient_norm']:.3f}, "
                  f"{line['tokens_per_gpu_per_second']:,.0f} tokens/s a process, filled {line['fill_rate']:.1%}",
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
# A run that went on with another one of these would be another run.
KEPT = ("model", "pack_length", "rows", "method", "division", "calls_per_update", "document_loss", "seed",
        "weight_decay")  # the optimizer state has it


def save_checkpoint(given, processes: Processes, model, optimizer, packer: Packer, done: int) -> None:
    """Parameters and optimizer states in full, whatever they were divided over, and where the packer stands."""
    model_state, optimizer_state = get_state_dict(model, optimizer, options=WHOLE)  # all processes take part
    if processes.is_first:
        state = {"format": "packjit-training", "version": 2, "done": done, "model": model_state,
                 "optimizer": optimizer_state, "options": {name: getattr(given, name) for name in KEPT},
                 "packer": packer.state_dict()}  # all packers stand at the same step
        replace_file(given.out / "checkpoint.pt", lambda file: torch.save(state, file))
    processes.wait()  # so that every process knows what there is to go on from


def read_checkpoint(given) -> dict:
    """Made by the same kind of run: `given` gets the calls of an update from it where it has none."""
    path = given.out / "checkpoint.pt"
    try:
        with path.open("rb") as file:
            state = torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise refused(f"--resume: there is no {path}; leave --resume out to begin anew") from None
    except OSError as error:
        raise refused(f"--resume: {path} cannot be read: {error.strerror}; change who may read it, put a copy of it "
                      "there, or give another --out to begin anew") from error
    except Exception as error:  # of many types; what they advise is for files that are whole
        raise refused(f"--resume: {path} cannot be read ({type(error).__name__}): it is damaged; put a copy of it "
                      "there, or give another --out to begin anew") from error
    if not isinstance(state, dict) or state.get("format") != "packjit-training" or state.get("version") != 2:
        raise refused(f"--resume: {path} is not a checkpoint of this program, version 2; give another --out to "
                      "begin anew")
    given.calls_per_update = given.calls_per_update or state["options"]["calls_per_update"]
    others = {name: value for name, value in state["options"].items() if value != getattr(given, name)}
    if others:
        was = ", ".join(said(name, value) for name, value in others.items())
        now = ", ".join(said(name, getattr(given, name)) for name in others)
        raise refused(f"--resume: {path} is of a run with {was}, and this one has {now}: give the options of that "
                      "run, or another --out to begin anew")
    return state


def said(name: str, value: object) -> str:
    """An option as on the command line."""
    option = f"--{name.replace('_', '-')}"
    return f"{option} {value}" if not isinstance(value, bool) else option if value else f"no {option}"


# --- ends that nobody wanted --------------------------------------------------------------------------------------


FIRST = "where another process died first, torchrun names it below, as Root Cause"


def first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"


@dataclasses.dataclass
class Progress:
    """How far the run is, for the message of one that ends early."""

    given: argparse.Namespace
    processes: Processes
    update: int = 0  # under way, from 1; 0: none yet
    kept: int = 0  # updates in the checkpoint

    def message(self, why: str) -> str:
        where = f"in update {self.update}" if self.update else "before the first update"
        kept = (f"{self.given.out / 'checkpoint.pt'} has the first {self.kept} updates, and the same command with "
                "--resume goes on from there" if self.kept else f"{self.given.out} has no checkpoint of it: start anew")
        return f"process {self.processes.rank} of {self.processes.count} ended {where}; {kept}. {why}"

    def watch_for_the_end(self) -> None:
        """torchrun ends the other processes by SIGTERM when one has died. One that waits in a reduction that will never
        be done has no ear for it: a handler runs only when the main thread is back in Python. So a thread listens."""
        woken, wakes = socket.socketpair()
        wakes.setblocking(False)
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda *_: None)

        def listen() -> None:
            while int(signal.SIGTERM) not in woken.recv(64):
                pass
            # One write, so that the lines of several processes do not mix.
            os.write(sys.stderr.fileno(), (self.message(f"It got SIGTERM: {FIRST}") + "\n").encode())
            wakes.close()
            os._exit(128 + signal.SIGTERM)

        threading.Thread(target=listen, daemon=True).start()


# --- training -----------------------------------------------------------------------------------------------------


def packers_of(given, processes: Processes, lengths: numpy.ndarray) -> list[Packer]:
    """A packer for each of the calls that this process makes in an update. Together they see every document once."""
    calls = given.calls_per_update
    if calls % processes.count:
        raise refused(f"--calls-per-update is {calls}, which {processes.count} processes cannot share evenly: "
                      f"give a multiple of {processes.count}, or on resuming a number of processes that divides "
                      f"{calls}")
    mine = range(processes.rank * calls // processes.count, (processes.rank + 1) * calls // processes.count)
    return [Packer(lengths, method=given.method, pack_length=given.pack_length, rows=given.rows, ranks=calls, rank=rank,
                   seed=given.seed, division=given.division,
                   loss_unit="document" if given.document_loss else "token") for rank in mine]


def train(given: argparse.Namespace, processes: Processes, progress: Progress) -> None:
    if not given.resume and (given.out / "checkpoint.pt").exists():
        raise refused(f"--out {given.out} holds a checkpoint: give --resume to go on from it, or another folder")
    try:
        given.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refused(f"--out {given.out} is no folder and cannot be made one: {error.strerror}; name a folder that "
                      "can be written") from error
    if processes.is_first:
        for part in given.out.glob("checkpoint.pt.*.part"):  # of a run that was killed while it wrote
            part.unlink()
    state = read_checkpoint(given) if given.resume else None
    progress.kept = state["done"] if state else 0
    given.calls_per_update = given.calls_per_update or processes.count
    tokens, lengths = tokens_of(read_documents(given.text))
    packers = packers_of(given, processes, lengths)

    torch.manual_seed(given.seed)  # the same parameters in every process
    config = dataclasses.replace(SIZES[given.model], vocab_size=VOCABULARY)
    model = distributed(MambaLM(config, device=processes.device, fuse=not given.no_fuse), processes, given.shard)
    optimizer = optimizer_of(model, given)
    if state:
        try:
            for packer in packers:
                packer.load_state_dict(state["packer"])
        except BadArgument as error:  # the options are the same
            raise refused(f"--resume: --text {given.text} has other documents than those that "
                          f"{given.out / 'checkpoint.pt'} was trained on: give the same text, or another --out to "
                          "begin anew") from error
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"],
                       options=WHOLE)
        del state

    log = Log(given, processes, progress.kept, {
        "parameters": sum(p.numel() for p in model.parameters()), "documents": len(lengths), "tokens": len(tokens),
        "processes": processes.count, "options": {key: str(value) if isinstance(value, pathlib.Path) else value
                                                  for key, value in vars(given).items()}})
    monitor = Monitor(given, processes)
    autocast = torch.autocast(processes.device.type, dtype=torch.bfloat16, enabled=given.dtype == "bf16")
    row_map = RowMap(packers[0])
    for update in range(progress.kept, given.updates):
        progress.update = update + 1
        batches = [batch_of(packer.next(), tokens, processes.device) for packer in packers]
        # The loss is a mean over the tokens of all calls of all processes. A mean in each call would weigh
        # a token more where a call happens to hold fewer of them.
        weight = processes.sum(torch.stack([batch.weights.sum() for batch in batches]).sum())
        weight = torch.where(weight > 0, weight, 1)  # no token has a next one, as in a rest of one token: a loss of 0
        calls = [Call(functools.partial(row_map.of, batch.positions), batch.input_ids, batch.targets, batch.weights)
                 for batch in batches]
        loss, waited = gradients(model, processes, calls, weight, autocast, measure=given.log_ranks)

        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), given.clip)
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        rate = learning_rate(update, given)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

        monitor.add(processes.sum(loss), norm, batches)
        if given.log_ranks:
            log.write(ranks_line(processes, update + 1, packers[0].state_dict()["epoch"], batches, waited))
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
            progress.kept = update + 1
    log.end()


def main(arguments: list[str] | None = None) -> None:
    given = options(arguments)
    processes = Processes(given.device, given.timeout)
    progress = Progress(given, processes)
    if processes.count > 1:
        progress.watch_for_the_end()
    try:
        train(given, processes, progress)
    except Exception as error:
        traceback.print_exc()
        why = f"{first_line(error)}{f' - {FIRST}' if processes.count > 1 else ''}"
        raise SystemExit(progress.message(why)) from error
    processes.end()


if __name__ == "__main__":
    main()
