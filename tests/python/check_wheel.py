#!/usr/bin/env python3
"""A tree as a wheel has it works where nothing else of packjit is: check_wheel.py ROOT BUILD CMAKE"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from run import interpreter_for

ROOT, BUILD = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
PROGRAM = """
import pathlib, numpy, packjit
assert pathlib.Path(packjit.__file__).parent.parent == pathlib.Path.cwd().resolve(), packjit.__file__
host = packjit.Device.host()
seq_map = packjit.SequenceMap.from_position_indices(host, numpy.array([[0, 1, 0, 1, 2]]))
conv = packjit.Conv1dPack(host, dtype="float32", bias=False, silu=False)
x = numpy.array([1, 2, 3, 4, 5], dtype=numpy.float32).reshape(1, 5, 1)
print(conv.forward(seq_map, x=x, weight=numpy.ones((1, 4), numpy.float32))["out"].ravel().tolist())
"""


def main() -> int:
    interpreter = interpreter_for("numpy", ROOT)
    if interpreter is None:
        return 1
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.argv[3], "--install", BUILD, "--component", "python", "--prefix", folder], check=True,
                       stdout=subprocess.DEVNULL)
        shutil.copytree(ROOT / "python/packjit", pathlib.Path(folder, "packjit"), dirs_exist_ok=True)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PACKJIT_LIB", "LD_"))}
        environment.update(PYTHONPATH=folder, PYTHONDONTWRITEBYTECODE="1")
        done = subprocess.run([interpreter, "-c", PROGRAM], capture_output=True, text=True, cwd=folder, env=environment)
    if done.stdout.strip() != "[1.0, 3.0, 3.0, 7.0, 12.0]":
        print(f"check_wheel.py: expected [1.0, 3.0, 3.0, 7.0, 12.0]\n{done.stdout}{done.stderr}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
