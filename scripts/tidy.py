#!/usr/bin/env python3
"""Runs clang-tidy over the project's sources but its tests, or over the files named:

    scripts/tidy.py BUILD_DIR [OPTION...] [FILE...]     options go to clang-tidy: --checks=..., --extra-arg=...

A file that was clean before is not checked again while nothing that decides the outcome has changed: the file, the
project's headers that it includes (from the build's dependency log), its compile command, .clang-tidy, clang-tidy's
version. What was skipped is printed. Exit status 1 when a file has findings.
"""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import shlex
import subprocess
import sys

root = pathlib.Path(__file__).resolve().parent.parent
build = pathlib.Path(sys.argv[1]).resolve()
options = [argument for argument in sys.argv[2:] if argument.startswith("--")]
chosen = {pathlib.Path(name).resolve() for name in sys.argv[2:] if name not in options}
stamps = build / "tidy-stamps"
stamps.mkdir(parents=True, exist_ok=True)


def project_headers():
    """Object file -> the files inside the tree that it was compiled from."""
    headers, current = {}, None
    log = subprocess.run(["ninja", "-C", build, "-t", "deps"], capture_output=True, text=True, check=True).stdout
    for line in log.splitlines():
        if line and not line.startswith(" "):
            current = headers.setdefault(line.split(": ")[0], [])
        elif line:
            path = (build / line.strip()).resolve()
            if path.is_relative_to(root):
                current.append(path)
    return headers


def key_of(entry, headers, fixed):
    digest = hashlib.sha256(fixed)
    digest.update(entry["command"].encode())
    words = shlex.split(entry["command"])
    output = words[words.index("-o") + 1]
    for path in sorted({pathlib.Path(entry["file"]), *headers.get(output, [])}):
        digest.update(path.read_bytes() if path.exists() else b"")
    return digest.hexdigest()


def check(entry):
    result = subprocess.run(["clang-tidy", "--quiet", *options, "-p", build, entry["file"]], capture_output=True, text=True)
    return entry, result.returncode, result.stdout, result.stderr


version = subprocess.run(["clang-tidy", "--version"], capture_output=True, check=True).stdout
fixed = version + (root / ".clang-tidy").read_bytes() + "".join(options).encode()
headers = project_headers()
todo, unchanged = [], 0
for entry in json.loads((build / "compile_commands.json").read_text()):
    path = pathlib.Path(entry["file"]).resolve()
    if not path.is_relative_to(root) or path.is_relative_to(root / "build") or path.is_relative_to(build):
        continue  # generated or foreign
    # Tests, half of all files, are mostly macros of GoogleTest; they are checked where they are named.
    if path not in chosen if chosen else path.is_relative_to(root / "tests"):
        continue
    entry["stamp"] = stamps / key_of(entry, headers, fixed)
    if entry["stamp"].exists():
        unchanged += 1
    else:
        todo.append(entry)

bad = 0
with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    for number, (entry, status, out, err) in enumerate(pool.map(check, todo), 1):
        if status == 0:
            entry["stamp"].touch()
        else:
            bad += 1
            print(f"clang-tidy: {os.path.relpath(entry['file'], root)}\n{out or err}", flush=True)
        if number % 10 == 0 and number < len(todo):
            print(f"clang-tidy: {number} of {len(todo)} files checked, {bad} with findings so far", flush=True)
print(f"clang-tidy: {len(todo) + unchanged - bad} files clean ({unchanged} unchanged since they were found clean), {bad} not")
sys.exit(1 if bad else 0)
