"""bench/train_step.py and bench/loss_curves.py on the CPU: every way computes the same, and no time is made up."""

import importlib.util
import json
import pathlib
import sys

import pytest

torch = pytest.importorskip("torch")

ROOT = pathlib.Path(__file__).parents[2]


def script(name):
    if str(ROOT / "bench") not in sys.path:  # as where it is run
        sys.path.insert(0, str(ROOT / "bench"))
    spec = importlib.util.spec_from_file_location(name, ROOT / "bench" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


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


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU, and there is one")
@pytest.mark.parametrize("name,arguments", [("train_step", []), ("loss_curves", ["--text", "docs"])])
def test_without_a_gpu_it_says_so(name, arguments, capsys):
    assert script(name).main(arguments) == 3
    assert "there is no GPU that PyTorch can use" in capsys.readouterr().err


def test_loss_curves_agree(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join("some words and more of them"[:3 + number % 20] for number in range(60)))
    report = tmp_path / "report.json"
    assert script("loss_curves").main(["--text", str(text), "--device", "cpu", "--model", "tiny", "--pack-length", "32",
                                       "--cut", "16", "--updates", "3", "--dtype", "fp32", "--json", str(report)]) == 0
    found = json.loads(report.read_text())
    assert len(found["packed"]["losses"]) == 3 and found["largest_difference"] < 1e-5
    assert found["packed"]["sequences_per_update"] == found["one_at_a_time"]["sequences_per_update"] > 1


def test_reports_are_drawn(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is missing")
    curve = {"losses": [3.0, 2.5, 2.25]}
    script("loss_curves").draw({"packed": curve, "one_at_a_time": curve}, tmp_path / "losses.svg")
    ways = {"packed": {"tokens_per_second": 46e3}, "one": {"tokens_per_second": 15e3}, "padded": {"failed": "why"}}
    script("train_step").draw({"models": {"1.4b": {"ways": ways}}, "gpu": {"name": "H200"}, "real_tokens": 16384,
                               "lengths": [1, 2]}, tmp_path / "steps.svg")
    for name in ("losses.svg", "steps.svg"):
        assert (tmp_path / name).read_text().startswith("<?xml")
    with pytest.raises(SystemExit, match="nothing was timed"):
        script("train_step").draw({"models": {"tiny": {"ways": {"packed": {"loss": 4.1}}}}}, tmp_path / "none.svg")
