"""The documents' Python, for the tests that run it as it stands."""

import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def blocks(with_torch: bool):
    found = []
    for document in ("README.md", "docs/python.md"):
        for block in re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL):
            if ("torch" in block) == with_torch:
                found.append(block)
    return found


def run(block: str) -> str:
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(ROOT / "python")})
    assert done.returncode == 0, f"{block}\n{done.stderr}"
    return done.stdout
