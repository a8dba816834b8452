#!/usr/bin/env python3
"""Plants each fault of faults.json in a scratch copy of the tree, rebuilds, and demands that its test fails.

A planted fault is text that stands exactly once in one file, replaced by other text. Before anything is planted, the named
tests must pass. Exit status: 0 when every fault was caught, 1 when one survived or could not be planted or built, 2 for bad
usage.

    tests/mutations/run.py [--build DIR] [--only K05 ...] [--jobs N] [--reasons]
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = "test_faults"
TEST_SECONDS = 300  # a test that hangs on a planted fault has caught it


def tracked_files():
    names = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True,
                           capture_output=True).stdout
    return [name for name in names.decode().split("\0") if name]


def copy_tree(target):
    """Copies what changed only, so that a kept scratch folder rebuilds little."""
    for name in tracked_files():
        source, copy = ROOT / name, target / name
        if not source.is_file():
            continue
        if copy.is_file() and copy.read_bytes() == source.read_bytes():
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
        shutil.copymode(source, copy)


def build(tree, jobs):
    folder = tree / "build"
    if not (folder / "build.ninja").is_file():
        done = subprocess.run(["cmake", "-G", "Ninja", "-S", tree, "-B", folder, "-DCMAKE_BUILD_TYPE=Release"],
                              capture_output=True, text=True)
        if done.returncode != 0:
            return done.stdout + done.stderr
    done = subprocess.run(["ninja", "-C", folder, f"-j{jobs}", PROGRAM], capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def reason(output):
    """The first line of a test's output that says what was wrong."""
    lines = output.splitlines()
    for mark in ("relative error", "elements differ", "C++ exception", "difference between", "Expected"):
        for line in lines:
            if mark in line:
                return line.strip()[:160]
    return "the program ended"


def run_test(tree, name, reasons):
    """passed, failed (any way to end badly counts), missing, or kernel: a kernel that does not compile catches nothing."""
    command = [tree / "build" / "tests" / "faults" / PROGRAM, f"--gtest_filter={name}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TEST_SECONDS, cwd=tree)
    except subprocess.TimeoutExpired:
        return "failed"
    if "Running 0 tests" in done.stdout:
        return "missing"
    if "compiling host source failed" in done.stdout + done.stderr:
        return "kernel"
    if reasons and done.returncode != 0:
        print("         " + reason(done.stdout), flush=True)
    return "passed" if done.returncode == 0 else "failed"


def outcome(tree, fault, options):
    path = tree / fault["file"]
    original = path.read_text()
    count = original.count(fault["old"])
    if count != 1:
        return f"NOT PLANTED: the text stands {count} times"
    try:
        path.write_text(original.replace(fault["old"], fault["new"]))
        log = build(tree, options.jobs)
        if log:
            return "NOT BUILT: " + log.strip().splitlines()[-1]
        result = run_test(tree, fault["test"], options.reasons)
        return {"failed": "caught", "passed": "SURVIVED", "missing": "NO SUCH TEST",
                "kernel": "KERNEL NOT BUILT"}[result]
    finally:
        path.write_text(original)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, help="keep the scratch copy and its build in this folder")
    parser.add_argument("--only", nargs="+", default=[], help="faults to plant, by name")
    parser.add_argument("--jobs", type=int, default=2, help="compiler processes at a time")
    parser.add_argument("--reasons", action="store_true", help="show what each test found, above its fault's line")
    options = parser.parse_args()

    faults = json.loads((ROOT / "tests" / "mutations" / "faults.json").read_text())
    unknown = set(options.only) - {fault["fault"] for fault in faults}
    if unknown:
        parser.error("faults.json has no " + ", ".join(sorted(unknown)))
    if options.only:
        faults = [fault for fault in faults if fault["fault"] in options.only]

    with tempfile.TemporaryDirectory(prefix="packjit-mutations-") as temporary:
        tree = options.build.resolve() if options.build else pathlib.Path(temporary)
        copy_tree(tree)
        log = build(tree, options.jobs)
        if log:
            print(log, file=sys.stderr)
            return 1
        bad = 0
        for name in sorted({fault["test"] for fault in faults}):
            result = run_test(tree, name, False)
            if result != "passed":
                print(f"without any planted fault: {name} {result}", flush=True)
                bad += 1
        print(f"{'fault':<8} {'result':<10} {'seconds':>7}  planted", flush=True)
        for fault in faults:
            start = time.monotonic()
            result = outcome(tree, fault, options)
            bad += result != "caught"
            print(f"{fault['fault']:<8} {result:<10} {time.monotonic() - start:>7.1f}  {fault['file']}: {fault['what']}",
                  flush=True)
        print("every planted fault was caught" if bad == 0 else f"{bad} not as demanded", flush=True)
        return 0 if bad == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
