#!/usr/bin/env python3
"""Runs pytest with an interpreter that has what the tests need: run.py numpy|torch ROOT PYTEST_ARGUMENTS...

Looks at PACKJIT_PYTHON, build/python (scripts/bootstrap.sh --torch), python3 and Debian's own, in this order. Without
one, tests that need PyTorch are skipped (exit status 77, and the reason), others fail. A file without tests of the
kind asked for is skipped too.
"""

import os
import pathlib
import shutil
import subprocess
import sys

SKIPPED = 77
NOTHING_SELECTED = 5  # of pytest
MODULES = {"numpy": ["numpy", "pytest"], "torch": ["numpy", "pytest", "torch"]}


def interpreters(root: pathlib.Path):
    candidates = [os.environ.get("PACKJIT_PYTHON"), root / "build/python/bin/python", shutil.which("python3"),
                  "/usr/bin/python3"]
    return [str(candidate) for candidate in dict.fromkeys(candidates) if candidate and shutil.which(str(candidate))]


def has(interpreter: str, modules) -> bool:
    look = "import importlib.util, sys; sys.exit(not all(importlib.util.find_spec(name) for name in sys.argv[1:]))"
    return subprocess.run([interpreter, "-c", look, *modules], stderr=subprocess.DEVNULL).returncode == 0


def interpreter_for(needs: str, root: pathlib.Path):
    """The first interpreter that has the modules, or None with the reason printed."""
    found = interpreters(root)
    for interpreter in found:
        if has(interpreter, MODULES[needs]):
            return interpreter
    print(f"no interpreter has {', '.join(MODULES[needs])}: looked at {', '.join(found)}; run scripts/bootstrap.sh"
          f"{' --torch' if needs == 'torch' else ''} or set PACKJIT_PYTHON", file=sys.stderr)
    return None


def main(needs: str, root: str, *arguments: str) -> int:
    interpreter = interpreter_for(needs, pathlib.Path(root))
    if interpreter is None:
        return SKIPPED if needs == "torch" else 1
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(root, "python")), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([interpreter, "-m", "pytest", "-p", "no:cacheprovider", "-rs", *arguments], env=environment,
                          cwd=root)
    return SKIPPED if done.returncode == NOTHING_SELECTED else done.returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
