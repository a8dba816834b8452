"""scripts/sanitize_kernels.py, with made-up tools: what they find is counted and kept, whatever they find it by."""

import json
import pathlib
import sys

import pytest
import scripts

sanitize_kernels = scripts.load(pathlib.Path(__file__).parents[2] / "scripts" / "sanitize_kernels.py")

# Takes its own options off and runs the rest; racecheck finds something in each backward convolution.
SANITIZER = """#!/bin/sh
[ "$1" = --version ] && exit 0
tool=$4
shift 4
"$@" || exit
file=$6
if [ $tool = racecheck ] && grep -q '"conv1d_pack_bwd"' "$file"; then
  echo '========= RACECHECK SUMMARY: 1 hazard displayed'
  exit 7
fi
echo '========= ERROR SUMMARY: 0 errors'
"""
TOOLS = {"compute-sanitizer": SANITIZER, "nvidia-smi": "#!/bin/sh\necho 'A GPU, 580.1'\n",
         "packjit": "#!/bin/sh\necho 'all within bounds'\n"}


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    for name, text in TOOLS.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["sanitize_kernels.py", str(tmp_path / "packjit"), *arguments])
        status = sanitize_kernels.main()
        printed = capsys.readouterr()
        return status, json.loads(printed.out) if printed.out else printed.err
    return run


def test_every_config_that_is_shipped_runs_once_under_each_tool(run):
    status, result = run("--tools", "memcheck", "initcheck")
    entries = json.loads((sanitize_kernels.SHIPPED / "nvidia_h200.json").read_text())["entries"]
    configs = {json.dumps([entry["operator"], entry["config"]]) for entry in entries}
    assert status == 0 and result["configs"] == len(configs) > 50
    assert [(one["tool"], one["clean"], one["findings"]) for one in result["runs"]] == [
        (tool, len(configs), []) for tool in ("memcheck", "initcheck")]
    assert all(sum(abs(n) for n in row) == sum(abs(n) for n in case["rows"][0])
               for case in sanitize_kernels.cases() for row in case["rows"])


def test_what_is_found_is_kept_with_its_case(run):
    status, result = run("--tools", "racecheck")
    (one,) = result["runs"]
    assert status == 1 and 0 < one["clean"] < result["configs"]
    assert {finding["case"]["op"] for finding in one["findings"]} == {"conv1d_pack_bwd"}
    assert one["clean"] + len(one["findings"]) == result["configs"]
    assert "exit status 7" in one["findings"][0]["output"] and "1 hazard" in one["findings"][0]["output"]


def test_a_run_that_checked_nothing_is_a_finding(run, tmp_path):
    (tmp_path / "packjit").write_text("#!/bin/sh\necho 'no GPU'\n")
    status, result = run("--tools", "memcheck")
    assert status == 1 and result["runs"][0]["clean"] == 0


def test_without_a_gpu_that_is_said(run, tmp_path):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    status, message = run()
    assert status == 3 and "nvidia-smi finds no GPU" in message


def test_without_the_tool_that_is_said(run, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "compute-sanitizer").unlink()
    status, message = run()
    assert status == 3 and "it takes a GPU and compute-sanitizer" in message
