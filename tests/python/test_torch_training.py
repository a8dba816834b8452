"""examples/train_mamba.py: the same numbers however a run is divided over processes and time."""

import importlib.util
import json
import math
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time
import types

import pytest
import scripts

torch = pytest.importorskip("torch")

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "train_mamba.py"
COMMON = ["--model", "tiny", "--device", "cpu", "--pack-length", "64", "--updates", "4", "--warm-up", "2",
          "--log-every", "1", "--checkpoint-every", "2"]
SMALL = [*COMMON, "--calls-per-update", "2"]


@pytest.fixture(scope="module")
def train():
    return scripts.load(SCRIPT)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Documents of 5 to 100 bytes: the longest are cut, the shortest share rows, an epoch has more than 4 updates."""
    documents = [f"{number}: " + "the quick brown fox, again and again. " * 3 for number in range(40)]
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n\n\n".join(document[:5 + number * 37 % 96] for number, document in enumerate(documents)))
    return path


@pytest.fixture(scope="module")
def whole(train, text, tmp_path_factory):
    """A run in one process and one go: its log lines and its checkpoint."""
    out = tmp_path_factory.mktemp("whole")
    train.main(["--text", str(text), "--out", str(out), *SMALL])
    return result_of(out)


def lines_of(out, kind):
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [line for line in lines if line["type"] == kind]


def result_of(out):
    return lines_of(out, "update"), torch.load(out / "checkpoint.pt", weights_only=True)


def torchrun(processes, script, arguments):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes),
               str(script), *arguments]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'python'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
                   "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def test_a_resumed_run_equals_an_uninterrupted_one(train, text, whole, tmp_path, monkeypatch):
    arguments = ["--text", str(text), "--out", str(tmp_path), *SMALL]
    rate = train.learning_rate

    def killed(update, given):
        if update == 3:  # behind the checkpoint of two updates and a third one that is lost
            raise KeyboardInterrupt
        return rate(update, given)

    monkeypatch.setattr(train, "learning_rate", killed)
    with pytest.raises(KeyboardInterrupt):
        train.main(arguments)
    monkeypatch.undo()
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["done"] == 2
    train.main([*arguments, "--resume"])

    lines, checkpoint = result_of(tmp_path)
    assert whole[1]["packer"] == checkpoint["packer"] and checkpoint["packer"]["step"] == 4  # in the middle of an epoch
    assert checkpoint["packer"]["epoch"] == 0
    assert [line["update"] for line in lines] == [1, 2, 3, 4]
    for line, expected in zip(lines, whole[0]):
        for name in ("loss", "gradient_norm", "learning_rate", "fill_rate", "batch_tokens"):
            assert line[name] == expected[name], name
    for name, tensor in whole[1]["model"].items():
        assert torch.equal(tensor, checkpoint["model"][name]), name
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("shard", [[], ["--shard"]], ids=["ddp", "fsdp"])
def test_two_processes_equal_one(text, whole, tmp_path, shard):
    done = torchrun(2, SCRIPT, ["--text", str(text), "--out", str(tmp_path), *SMALL, *shard])
    assert done.returncode == 0, done.stderr[-3000:]
    lines, checkpoint = result_of(tmp_path)
    for line, expected in zip(lines, whole[0], strict=True):
        assert line["loss"] == pytest.approx(expected["loss"], rel=1e-6)
        assert line["gradient_norm"] == pytest.approx(expected["gradient_norm"], rel=1e-5)
        for name in ("batch_tokens", "batch_sequences", "fill_rate"):
            assert line[name] == expected[name], name
    assert checkpoint["packer"] == whole[1]["packer"] and checkpoint["model"].keys() == whole[1]["model"].keys()
    for name, tensor in whole[1]["model"].items():
        # Adam divides by the gradient's size, so where that is nearly 0 its rounding shows: absolutely, against the
        # 4 updates of 1e-3 that a parameter may have moved.
        assert (checkpoint["model"][name] - tensor).abs().max() < 2e-5, name


KILLED = """
import importlib.util, os, signal, sys, time
spec = importlib.util.spec_from_file_location("train_mamba", {script!r})
train = sys.modules["train_mamba"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(train)
rate, map_of = train.learning_rate, train.RowMap.of


def slow(self, positions):  # the second process has more to do than the first
    time.sleep(0.8 * int(os.environ["RANK"]))
    return map_of(self, positions)


def killed(update, given):  # behind the gradients of the fourth update, which is lost, as the third one is
    if update == 3 and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return rate(update, given)


train.learning_rate, train.RowMap.of = killed, slow
train.main()
"""


@pytest.fixture(scope="module")
def short_text(tmp_path_factory):
    """An epoch of 8 updates of two rows of 64 tokens; some documents are cut."""
    path = tmp_path_factory.mktemp("short") / "text.txt"
    path.write_text("\n\n".join(chr(97 + number) * (9 + number * 31 % 90) for number in range(18)))
    return path


@pytest.fixture(scope="module")
def killed(short_text, tmp_path_factory):
    """What torchrun said of two processes, one of which was killed; their folder; the seconds that it took."""
    folder = tmp_path_factory.mktemp("killed")
    (folder / "killed.py").write_text(KILLED.format(script=str(SCRIPT)))
    out, began = folder / "out", time.monotonic()
    done = torchrun(2, folder / "killed.py", ["--text", str(short_text), "--out", str(out), *SMALL, "--updates", "8",
                                              "--log-ranks", "--timeout", "60"])
    return done, out, time.monotonic() - began


def test_a_killed_process_ends_the_run_with_a_message(killed):
    done, out, seconds = killed
    assert done.returncode == 1
    assert seconds < 100  # the timeout of 60 s and what starting takes; in fact it ends at once
    # Said by the process that is left, since its neighbour is gone or since torchrun ended it.
    assert (f"process 0 of 2 ended in update 4; {out / 'checkpoint.pt'} has the first 2 updates, and the same command "
            "with --resume goes on from there. ") in done.stderr, done.stderr
    assert "Signal 9 (SIGKILL)" in done.stderr  # torchrun's own table
    assert not list(out.glob("*.part"))
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]  # each is whole
    assert [line["update"] for line in lines if line["type"] == "update"] == [1, 2, 3]
    assert torch.load(out / "checkpoint.pt", weights_only=True)["done"] == 2


def test_the_log_says_who_waited_for_whom(killed):
    lines = lines_of(killed[1], "ranks")[1:]  # the first update compiles
    assert [line["update"] for line in lines] == [2, 3]
    # The first process waits for the second, by the 0.8 s that it is slower, or less where the machine is busy.
    first, second = [sum(line["waited_seconds"][rank] for line in lines) for rank in (0, 1)]
    assert first > second and first > 0.4, (first, second)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_resumed_run_sees_every_document_once(train, short_text, killed, tmp_path, processes):
    out = tmp_path / "out"
    shutil.copytree(killed[1], out)
    before = [line for line in lines_of(out, "ranks") if line["update"] <= 2]
    (out / "checkpoint.pt.7.part").write_bytes(b"as far as it came")
    # How many calls an update has, the checkpoint knows.
    arguments = ["--text", str(short_text), "--out", str(out), *COMMON, "--updates", "8", "--log-ranks", "--resume"]
    if processes == 1:
        train.main(arguments)
    else:
        done = torchrun(processes, SCRIPT, arguments)
        assert done.returncode == 0, done.stderr[-3000:]

    lines = lines_of(out, "ranks")
    assert [line["update"] for line in lines] == [1, 2, 3, 4, 5, 6, 7, 8] and lines[:2] == before
    assert [len(line["pieces"]) for line in lines] == [2] * 2 + [processes] * 6
    seen = sorted((document, offset, length) for line in lines if line["epoch"] == 0
                  for pieces in line["pieces"] for document, offset, length in pieces)
    _, lengths = train.tokens_of(train.read_documents(short_text))
    ends = dict.fromkeys(range(len(lengths)), 0)
    for document, offset, length in seen:  # each piece begins where the one before ended
        assert ends[document] == offset
        ends[document] += length
    assert ends == dict(enumerate(lengths.tolist())) and len(seen) > len(lengths)
    assert not list(out.glob("*.part"))
    assert lines[-1]["epoch"] == 0 and torch.load(out / "checkpoint.pt", weights_only=True)["packer"]["step"] == 8
    for line in lines:
        assert [sum(piece[2] for piece in pieces) for pieces in line["pieces"]] == line["tokens"]
        assert [max(piece[2] for piece in pieces) for pieces in line["pieces"]] == line["longest"]
        if len(line["tokens"]) > 1:
            assert all(seconds >= 0 for seconds in line["waited_seconds"])


WAITING = """
import os, pathlib, signal, sys, time, types
sys.path.insert(0, {folder!r})
import train_mamba as train
given, processes = types.SimpleNamespace(out=pathlib.Path("run")), types.SimpleNamespace(rank=3, count=8)
progress = train.Progress(given, processes, update=7, kept=4)
progress.watch_for_the_end()
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)  # a reduction that will never be done
"""


def test_a_process_that_waits_for_a_dead_one_says_so_when_torchrun_ends_it():
    done = subprocess.run([sys.executable, "-c", WAITING.format(folder=str(SCRIPT.parent))], capture_output=True,
                          text=True, timeout=50)
    assert done.returncode == 143
    assert done.stderr == (
        "process 3 of 8 ended in update 7; run/checkpoint.pt has the first 4 updates, and the same command with "
        "--resume goes on from there. It got SIGTERM: where another process died first, torchrun names it below, as "
        "Root Cause\n")


def test_a_number_of_processes_that_cannot_share_the_calls_is_refused(train):
    given = train.options(["--text", ".", "--out", "/elsewhere", "--calls-per-update", "4"])
    with pytest.raises(SystemExit, match="--calls-per-update is 4, which 3 processes cannot share .* that divides 4"):
        train.packers_of(given, types.SimpleNamespace(count=3, rank=0), [5, 6])


def test_processes_that_do_not_come_are_waited_for_so_long(train, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in {"WORLD_SIZE": 2, "RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(SystemExit, match=r"process 0 of 2: the others did not come within 1 s \(--timeout"):
        train.Processes("cpu", timeout=1)


@pytest.mark.parametrize("option,message", [
    (["--document-loss"], "with no --document-loss, and this one has --document-loss: give the options of that run"),
    (["--model", "small"], "with --model tiny, and this one has --model small"),
    (["--method", "ffd", "--seed", "3"], "with --method balanced, --seed 0, and this one has --method ffd, --seed 3"),
    (["--division", "round-robin"], "with --division balanced, and this one has --division round-robin"),
    (["--calls-per-update", "4"], "with --calls-per-update 2, and this one has --calls-per-update 4"),
    (["--text", "OTHER"], "has other documents than those that .*checkpoint.pt was trained on: give the same text")])
def test_a_checkpoint_of_another_run_is_refused(train, short_text, killed, tmp_path, option, message):
    (tmp_path / "other.txt").write_text("one document")
    option = [value.replace("OTHER", str(tmp_path / "other.txt")) for value in option]
    before = (killed[1] / "log.jsonl").read_bytes()
    with pytest.raises(SystemExit, match=f"--resume: .*{message}"):
        train.main(["--text", str(short_text), "--out", str(killed[1]), *SMALL, "--resume", *option])
    assert (killed[1] / "log.jsonl").read_bytes() == before


def test_a_checkpoint_of_an_older_version_is_refused(train, text, tmp_path):
    torch.save({"format": "packjit-training", "version": 1}, tmp_path / "checkpoint.pt")
    with pytest.raises(SystemExit, match="is not a checkpoint of this program, version 2; give another --out"):
        train.main(["--text", str(text), "--out", str(tmp_path), *SMALL, "--resume"])


@pytest.mark.parametrize("contents", [b"", b"garbage"])
def test_a_damaged_checkpoint_is_refused(train, text, tmp_path, contents):
    (tmp_path / "checkpoint.pt").write_bytes(contents)
    with pytest.raises(SystemExit, match="--resume: .*checkpoint.pt cannot be read .*: it is damaged"):
        train.main(["--text", str(text), "--out", str(tmp_path), *SMALL, "--resume"])


def test_a_checkpoint_that_cannot_be_read_is_not_called_damaged(train, text, tmp_path, monkeypatch):
    arguments = ["--text", str(text), "--out", str(tmp_path), *SMALL, "--resume"]
    (tmp_path / "checkpoint.pt").mkdir()
    with pytest.raises(SystemExit, match="--resume: .*checkpoint.pt cannot be read: Is a directory; change who may"):
        train.main(arguments)

    def refuse(path, mode):
        raise PermissionError(13, "Permission denied", str(path))
    monkeypatch.setattr(pathlib.Path, "open", refuse)
    with pytest.raises(SystemExit, match="--resume: .*checkpoint.pt cannot be read: Permission denied; change who may"):
        train.main(arguments)


def test_monitors_say_what_was_packed(train, tmp_path):
    (tmp_path / "text.txt").write_bytes(b"\n\n".join([b"x" * 15] * 64))  # 16 tokens each, with the end
    train.main(["--text", str(tmp_path / "text.txt"), "--out", str(tmp_path / "out"), *SMALL, "--updates", "2"])
    lines, _ = result_of(tmp_path / "out")
    for line in lines:
        assert (line["fill_rate"], line["sequences_per_pack"], line["length_mean"], line["length_deviation"],
                line["batch_tokens"], line["batch_sequences"]) == (1.0, 4.0, 16.0, 0.0, 128.0, 8.0)
    assert abs(lines[0]["loss"] - 5.576) < 0.25  # log(264): nothing learnt yet


def test_the_log_is_drawn_and_without_matplotlib_that_is_said(train, tmp_path, monkeypatch, capsys):
    log = tmp_path / "log.jsonl"
    lines = [{"type": "run"}, *[{"type": "update", "update": update, "mean_loss": 9 - update} for update in (1, 2, 3)]]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    if importlib.util.find_spec("matplotlib"):
        train.plot_loss(log)
        assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    train.plot_loss(log)
    assert "no plot of" in capsys.readouterr().err


def test_documents_are_files_or_what_blank_lines_part(train, tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "2.txt").write_bytes(b"two\n\nstill two")
    (tmp_path / "1.txt").write_bytes(b"one")
    (tmp_path / "empty.txt").write_bytes(b"")
    assert train.read_documents(tmp_path) == [b"one", b"two\n\nstill two"]
    assert train.read_documents(tmp_path / "b" / "2.txt") == [b"two", b"still two"]
    tokens, lengths = train.tokens_of([b"ab", b"c"])
    assert tokens.tolist() == [97, 98, 256, 99, 256] and lengths.tolist() == [3, 2]


def test_a_checkpoint_that_cannot_be_written_leaves_the_old_one(train, tmp_path):
    (tmp_path / "checkpoint.pt").write_bytes(b"old")

    def full(file):
        file.write(b"half of the ne")
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space left"):
        train.replace_file(tmp_path / "checkpoint.pt", full)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("checkpoint.pt", b"old")]


def test_a_loss_that_is_no_number_stops_the_run(train, text, tmp_path):
    with pytest.raises(SystemExit, match="no number in the updates up to 2: .* lower --learning-rate"):
        train.main(["--text", str(text), "--out", str(tmp_path), *SMALL, "--learning-rate", "1e30"])


def test_what_cannot_be_done_is_said(train, text, tmp_path):
    arguments = ["--text", str(text), "--out", str(tmp_path), *SMALL]
    with pytest.raises(SystemExit, match="--out /dev/null is no folder and cannot be made one"):
        train.main(["--text", str(text), "--out", os.devnull, *SMALL])
    with pytest.raises(SystemExit, match="--resume: there is no .*checkpoint.pt"):
        train.main([*arguments, "--resume"])
    with pytest.raises(SystemExit, match="--shard divides parameters over processes, and there is one"):
        train.main([*arguments, "--shard"])
    with pytest.raises(SystemExit, match="there is no such folder or file"):
        train.main(["--text", str(tmp_path / "none"), "--out", str(tmp_path)])


def test_text_without_documents_is_refused(train, tmp_path, capsys):
    (tmp_path / "empty.txt").write_bytes(b"\n\n")
    (tmp_path / "folder").mkdir()
    for name, message in (("empty.txt", "there is no document in it"), ("folder", "there is no document in it"),
                          ("none", "there is no such folder or file")):
        with pytest.raises(SystemExit) as ended:
            train.main(["--text", str(tmp_path / name), "--out", str(tmp_path / "out"), *SMALL])
        assert ended.value.code == 2 and f"error: --text {tmp_path / name}: {message}" in capsys.readouterr().err


def test_text_that_cannot_be_read_is_refused(train, tmp_path, monkeypatch, capsys):
    (tmp_path / "locked.txt").write_text("some words")

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))
    monkeypatch.setattr(pathlib.Path, "read_bytes", refuse)
    with pytest.raises(SystemExit) as ended:
        train.read_documents(tmp_path)
    assert ended.value.code == 2 and "cannot be read: [Errno 13] Permission denied" in capsys.readouterr().err


@pytest.mark.parametrize("option,message", [
    (("--clip", "0"), "--clip is 0.0, expected more than 0"), (("--log-every", "0"), "--log-every is 0"),
    (("--checkpoint-every", "0"), "--checkpoint-every is 0"), (("--calls-per-update", "0"), "--calls-per-update is 0"),
    (("--updates", "0"), "--updates is 0, expected 1 or more"), (("--warm-up", "-3"), "--warm-up is -3, expected 0"),
    (("--seed", "-1"), "--seed is -1, expected 0"), (("--learning-rate", "nan"), "--learning-rate is nan"),
    (("--pack-length", "-8"), "--pack-length is -8"), (("--out", "TEXT/out"), "lies in --text")])
def test_options_that_would_train_nothing_are_refused(train, tmp_path, capsys, option, message):
    arguments = ["--text", str(tmp_path), "--out", str(tmp_path.parent / "elsewhere"), *SMALL,
                 *[value.replace("TEXT", str(tmp_path)) for value in option]]
    with pytest.raises(SystemExit) as ended:
        train.main(arguments)
    assert ended.value.code == 2 and message in capsys.readouterr().err


def test_a_rest_of_one_token_is_no_loss_that_is_no_number(train, tmp_path):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "one.txt").write_bytes(b"8 bytes.")
    out = tmp_path / "out"
    arguments = ["--text", str(tmp_path / "text"), "--out", str(out), *SMALL, "--pack-length", "8", "--updates", "3"]
    train.main(arguments)  # 9 tokens with the end of the document: 8, and 1 that has nothing to predict
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert all(math.isfinite(line["loss"]) for line in lines if line["type"] == "update")
    with pytest.raises(SystemExit, match="holds a checkpoint: give --resume"):
        train.main(arguments)
