"""bench/train_step.py, loss_curves.py and scaling.py on the CPU: every way computes the same, no time is made up."""

import importlib.util
import json
import os
import pathlib
import threading

import pytest
import scripts

torch = pytest.importorskip("torch")

ROOT = pathlib.Path(__file__).parents[2]


def script(name):
    return scripts.load(ROOT / "bench" / f"{name}.py")


def pipe_of(contents: bytes) -> str:
    """A name of a pipe, which can be read once."""
    end, begin = os.pipe()

    def write():
        with open(begin, "wb") as file:
            file.write(contents)
    threading.Thread(target=write, daemon=True).start()
    return f"/dev/fd/{end}"


def test_every_way_computes_the_same_documents(tmp_path, capsys):
    out = tmp_path / "report.json"
    ways = ["packed", "ideal", "padded", "one"]
    assert script("train_step").main(["--device", "cpu", "--model", "tiny", "--tokens", "48", "--cut", "12",
                                      "--padded-rows", "3", "--ways", *ways, "--json", str(out)]) == 0
    report = json.loads(out.read_text())
    found = report["models"]["tiny"]["ways"]
    assert list(found) == ways
    assert sum(report["lengths"]) == report["real_tokens"] == found["packed"]["tokens"] <= 48
    assert found["ideal"]["tokens"] == 48
    assert max(report["lengths"]) <= 12 and len(set(report["lengths"])) > 1
    for way in ("padded", "one"):
        assert found[way]["loss"] == pytest.approx(found["packed"]["loss"], rel=1e-3)  # bf16
    assert 3.9 < found["packed"]["loss"] < 4.4  # log(64) = 4.16: nothing is learnt
    assert not [name for way in found.values() for name in way if "seconds" in name or "per_second" in name]
    assert "not timed: no GPU" in capsys.readouterr().out


def test_documents_are_the_real_lengths():
    train_step = script("train_step")
    lengths = train_step.documents(train_step.options([]))
    assert 16384 - 28 < sum(lengths) <= 16384 and max(lengths) <= 2048 and len(lengths) > 10
    assert lengths == train_step.documents(train_step.options([]))
    assert lengths != train_step.documents(train_step.options(["--seed", "1"]))


def test_lengths_may_be_a_pipe():
    train_step = script("train_step")
    given = train_step.options(["--lengths", pipe_of(b"4000\n30\n"), "--tokens", "4030"])
    assert sorted(train_step.documents(given)) == [30, 1952, 2048]


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU, and there is one")
@pytest.mark.parametrize("name,arguments,message", [
    ("train_step", [], "there is no GPU that PyTorch can use"),
    ("loss_curves", ["--text", "docs"], "there is no GPU that PyTorch can use"),
    ("scaling", [], "asked for 1, 2, 4, 8 GPUs, and PyTorch can use 0")])
def test_without_a_gpu_it_says_so(name, arguments, message, capsys):
    assert script(name).main(arguments) == 3
    assert message in capsys.readouterr().err


def test_loss_curves_agree(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join("some words and more of them"[:3 + number % 20] for number in range(60)))
    report = tmp_path / "report.json"
    assert script("loss_curves").main(["--text", str(text), "--device", "cpu", "--model", "tiny", "--pack-length", "32",
                                       "--cut", "16", "--updates", "3", "--dtype", "fp32", "--json", str(report)]) == 0
    found = json.loads(report.read_text())
    assert len(found["packed"]["losses"]) == 3 and found["largest_difference"] < 1e-5
    assert found["packed"]["sequences_per_update"] == found["one_at_a_time"]["sequences_per_update"] > 1


def test_losses_that_are_no_numbers_do_not_agree(tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join("some words and more of them"[:3 + number % 20] for number in range(60)))
    assert script("loss_curves").main(["--text", str(text), "--device", "cpu", "--model", "tiny", "--pack-length", "32",
                                       "--updates", "4", "--dtype", "fp32", "--learning-rate", "1e30"]) == 4
    assert "losses differ by nan at most" in capsys.readouterr().out


def test_scaling_on_processes_of_the_cpu(tmp_path, capsys, monkeypatch):
    scaling, out, plot = script("scaling"), tmp_path / "report.json", tmp_path / "plot.svg"
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "python"))
    arguments = ["--device", "cpu", "--model", "tiny", "--tokens", "48", "--cut", "12", "--padded-rows", "3", "--steps",
                 "1", "--repeats", "1", "--balance-steps", "3", "--loss-updates", "2", "--rows", "2", "--json",
                 str(out)]
    assert scaling.main([*arguments, "--gpus", "1"]) == 0
    drawn = ["--plot", str(plot)] if importlib.util.find_spec("matplotlib") else []
    lengths = pipe_of((ROOT / "bench" / "data" / "mixed_lengths.txt").read_bytes())  # those of the first run
    assert scaling.main([*arguments, "--gpus", "2", "--add", "--lengths", lengths, *drawn]) == 0
    report = json.loads(out.read_text())
    assert (report["device"], report["unit"], report["gpu"]) == ("cpu", "CPU process", {})
    model, compared = report["models"]["tiny"], report["compared"]["tiny"]
    assert list(model) == ["1", "2"] and "failed" not in model["1"] and "failed" not in model["2"]
    for count in ("1", "2"):
        ways = model[count]["ways"]
        assert list(ways) == ["packed", "padded", "one"]
        for way in ways.values():  # the same documents
            assert way["first_loss"] == pytest.approx(ways["packed"]["first_loss"], rel=1e-5)
            assert way["tokens_an_update"] == ways["packed"]["tokens_an_update"]
            assert way["tokens_per_second"] > 0
        assert 3.9 < ways["packed"]["first_loss"] < 4.4  # log(64) = 4.16: nothing is learnt
    assert model["2"]["loss"]["losses"] == pytest.approx(model["1"]["loss"]["losses"], rel=1e-6)
    assert compared["loss_difference"]["2"] < 1e-5
    assert compared["efficiency"]["packed"]["2"] == pytest.approx(
        model["2"]["ways"]["packed"]["tokens_per_second"] / model["1"]["ways"]["packed"]["tokens_per_second"])
    balanced, naive = [model["2"]["balance"][division] for division in ("balanced", "round-robin")]
    assert balanced["epoch"]["mean_longest_spread"] < naive["epoch"]["mean_longest_spread"]
    assert balanced["epoch"]["updates"] <= naive["epoch"]["updates"]
    for update in balanced["updates"]:
        assert len(update["tokens"]) == 2 and all(0 <= waited <= max(update["seconds"])
                                                  for waited in update["waited_seconds"])
    said = capsys.readouterr().out
    assert "real tokens/s a CPU process" in said and "they say nothing about a GPU" in said
    if drawn:
        assert plot.read_text().startswith("<?xml")
    with pytest.raises(SystemExit, match="--add: .* is of other settings: tokens 48, now 96. Give the same"):
        scaling.main([*arguments, "--tokens", "96", "--gpus", "2", "--add"])


def test_scaling_says_how_much_losses_may_differ_and_what_failed():
    scaling = script("scaling")

    def of(losses, speed, **more):
        return {"ways": {"packed": {"tokens_per_second": speed, "least_tokens_per_second": speed,
                                    "most_tokens_per_second": speed, "peak_memory_gib": 60.0}},
                "loss": {"losses": losses, **more}, "balance": {}}
    model = {"1": of([4.0, 3.0], 50e3, turned=[4.0, 3.001]), "2": of([4.0, 3.003], 45e3),
             "8": {**of([4.0, 3.005], 40e3), "failed": "OutOfMemoryError: no room"}}
    found = scaling.compared(model)
    assert found["efficiency"] == {"packed": {"1": 1.0, "2": 0.9, "8": 0.8}}
    assert found["order_difference"] == pytest.approx(1e-3) and found["allowed_difference"] == pytest.approx(4e-3)
    assert found["loss_difference"] == {"2": pytest.approx(3e-3), "8": pytest.approx(5e-3)} and scaling.differs(found)
    said = scaling.table({"device": "cuda", "models": {"1.4b": model}, "compared": {"1.4b": found}})
    assert "| 1.4b | 8 | packed | 40,000 (40,000 to 40,000) | 80.0% | 60.0 |" in said
    assert "1.4b, 8 GPUs: ended early: OutOfMemoryError: no room" in said
    assert "1.4b, 8 GPUs: losses differ from those of one by 5.00e-03 at most; 1.00e-03 from the order" in said
    assert not scaling.differs(scaling.compared({"1": model["1"], "2": model["2"]}))
    model["2"]["loss"]["losses"][0] = float("nan")
    assert scaling.differs(scaling.compared({"1": model["1"], "2": model["2"]}))


@pytest.mark.parametrize("option,message", [
    (["--gpus", "2", "3"], "--rows is 3, which 2 GPUs cannot share evenly"), (["--gpus", "0"], "are 1 or more"),
    (["--add"], "--add keeps what the file of --json has: give --json")])
def test_scaling_refuses_what_cannot_be_measured(option, message, capsys):
    with pytest.raises(SystemExit) as ended:
        script("scaling").main(option)
    assert ended.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["train_step", "loss_curves", "scaling"])
@pytest.mark.parametrize("option,value,message", [
    ("--json", "none/report.json", "none is no folder"), ("--json", ".", "is a folder: give the file to write"),
    ("--plot", "figure.docx", "ends in '.docx', expected one of")])
def test_a_report_that_cannot_be_written_is_refused_before_the_work(name, option, value, message, tmp_path, capsys):
    if option == "--plot":
        pytest.importorskip("matplotlib", reason="matplotlib is missing")
    text = ["--text", str(tmp_path)] if name == "loss_curves" else []
    with pytest.raises(SystemExit) as ended:
        script(name).main([*text, option, str(tmp_path / value)])
    assert ended.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["train_step", "scaling"])
@pytest.mark.parametrize("lengths,message", [
    (None, "cannot be read"), ("\n", "has nothing where the tokens"), ("5\nx\n", "has 'x' where the tokens"),
    ("5\n0\n", "has '0' where the tokens")])
def test_lengths_that_are_none_are_refused(name, lengths, message, tmp_path, capsys):
    if lengths is not None:
        (tmp_path / "lengths.txt").write_text(lengths)
    with pytest.raises(SystemExit) as ended:
        script(name).main(["--lengths", str(tmp_path / "lengths.txt")])
    assert ended.value.code == 2 and message in capsys.readouterr().err


def test_loss_curves_take_the_folder_that_they_run_in(tmp_path, monkeypatch):
    """Its own folder was taken for the --out of a training that would read its own log."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("some words and more of them")
    assert script("loss_curves").main(["--text", ".", "--device", "cpu", "--model", "tiny", "--pack-length", "16",
                                       "--updates", "1", "--dtype", "fp32"]) == 0


@pytest.mark.parametrize("text,message", [
    (None, "there is no such folder or file"), ("", "there is no document in it")])
def test_loss_curves_refuse_text_without_documents(text, message, tmp_path, capsys):
    if text is not None:
        (tmp_path / "text.txt").write_text(text)
    with pytest.raises(SystemExit) as ended:
        script("loss_curves").main(["--text", str(tmp_path / "text.txt"), "--device", "cpu", "--model", "tiny"])
    assert ended.value.code == 2 and message in capsys.readouterr().err


def test_reports_are_drawn(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is missing")
    curve = {"losses": [3.0, 2.5, 2.25]}
    script("loss_curves").draw({"packed": curve, "one_at_a_time": curve}, tmp_path / "losses.svg")
    ways = {"packed": {"tokens_per_second": 46e3}, "one": {"tokens_per_second": 15e3}, "padded": {"failed": "why"}}
    script("train_step").draw({"models": {"1.4b": {"ways": ways}}, "gpu": {"name": "H200"}, "real_tokens": 16384,
                               "lengths": [1, 2]}, tmp_path / "steps.svg")
    scaling = script("scaling")
    models = {"1.4b": {count: {"ways": {"packed": {"tokens_per_second": 40e3}}} for count in ("1", "2", "8")}}
    efficiency = {"packed": {"1": 1.0, "2": 0.98, "8": 0.95}}
    scaling.draw({"device": "cuda", "gpu": {"name": "H200"}, "tokens": 16384, "models": models,
                  "compared": {"1.4b": {"efficiency": efficiency}}}, tmp_path / "scaling.svg")
    for name in ("losses.svg", "steps.svg", "scaling.svg"):
        assert (tmp_path / name).read_text().startswith("<?xml")
    with pytest.raises(SystemExit, match="nothing was timed"):
        script("train_step").draw({"models": {"tiny": {"ways": {"packed": {"loss": 4.1}}}}}, tmp_path / "none.svg")
