"""What the reports of measurements have in common."""

import argparse
import datetime
import importlib
import importlib.util
import os
import pathlib
import subprocess
import sys

# Exit status: the machine lacks something; a part ended with an error, or differs, which the report has.
MISSING, FAILED = 3, 4
EXAMPLE = pathlib.Path(__file__).resolve().parents[1] / "examples" / "train_mamba.py"


def load_example():
    """examples/train_mamba.py as a module."""
    spec = importlib.util.spec_from_file_location("train_mamba", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["train_mamba"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def gpu() -> dict:
    """Name, driver, clocks and power limit, as nvidia-smi says."""
    fields = ("name", "driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.limit", "temperature.gpu")
    try:
        line = subprocess.run(["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader", "-i", "0"],
                              capture_output=True, text=True, check=True, timeout=20).stdout.splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return {}
    return dict(zip(fields, [value.strip() for value in line.split(",")]))


def output_file(name: str) -> pathlib.Path:
    """For argparse: a file that can be written, which is found out before the work and not after it."""
    path = pathlib.Path(name)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{name} is a folder: give the file to write")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{name} cannot be written, since {path.parent} is no folder: make it, or "
                                         "give another one")
    if not os.access(path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{name} cannot be written, since {path.parent} may not be: give another "
                                         "folder")
    return path


def plot_file(name: str) -> pathlib.Path:
    """For argparse: the same of a figure, which takes matplotlib and an ending that it knows."""
    path = output_file(name)
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError:
        raise argparse.ArgumentTypeError(f"{name} cannot be drawn without matplotlib: pip install matplotlib") from None
    known = sorted(FigureCanvasBase.get_supported_filetypes())
    if path.suffix[1:].lower() not in known:
        raise argparse.ArgumentTypeError(f"{name} ends in '{path.suffix}', expected one of {', '.join(known)}")
    return path


def torch_is_missing(script: str) -> bool:
    """Says so."""
    try:
        importlib.import_module("torch")
    except ImportError:
        print(f"{script} needs PyTorch: pip install torch", file=sys.stderr)
        return True
    return False


def opening(script: str, arguments, device: str) -> dict:
    """What a report begins with."""
    import torch
    return {"command": " ".join(["python", f"bench/{script}", *(arguments if arguments is not None else sys.argv[1:])]),
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "device": device,
            "gpu": gpu() if device == "cuda" else {}, "torch": torch.__version__, "cuda": torch.version.cuda}


def difference(losses: list[float], others: list[float]) -> float:
    """The largest, in nats. Of a loss that is no number: that, so that no comparison takes it for small."""
    found = [abs(one - other) for one, other in zip(losses, others, strict=True)]
    return next((value for value in found if value != value), max(found))


def write_whole(path: pathlib.Path, text: str) -> None:
    """Whoever is killed meanwhile leaves what was there before."""
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    part.replace(path)


def save_figure(figure, path: pathlib.Path) -> None:
    """By the ending of the name; the same report gives the same bytes."""
    figure.savefig(path, dpi=150, bbox_inches="tight", metadata={"Date": None} if path.suffix == ".svg" else None)
