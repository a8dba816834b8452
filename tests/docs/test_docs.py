#!/usr/bin/env python3
"""Holds the documents against the tree and the program: test_docs.py ROOT PACKJIT [CASE...]"""

import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest
import venv

ROOT = pathlib.Path(sys.argv[1]).resolve()
PACKJIT = pathlib.Path(sys.argv[2]).resolve()


def tracked_files():
    """Files of the tree: what git knows or would add; everything but builds in a tree without git."""
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                            capture_output=True)
    if listed.returncode == 0:
        paths = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    else:
        paths = [path for path in ROOT.rglob("*") if path.relative_to(ROOT).parts[0] not in ("build", ".git")]
    return [path for path in paths if path.is_file()]


def documents():
    return [path for path in tracked_files() if path.suffix == ".md"]


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, **options)


def code_in(text):
    """Code spans and the lines of code blocks, each with the line of text that it stands in."""
    inside = False
    for line in text.split("\n"):
        if line.lstrip().startswith("```"):
            inside = not inside
        elif inside:
            yield line, line
        else:
            for span in re.findall(r"`([^`]+)`", line):
                yield span, line


class ReadmeCommandsRun(unittest.TestCase):
    def test_blocks_marked_for_testing(self):
        blocks = re.findall(r"<!-- test -->\n```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
        self.assertTrue(blocks)
        with tempfile.TemporaryDirectory() as folder:
            # The commands name the program and the data as seen from the root; what they write must not land there.
            program = pathlib.Path(folder, "build/release/cli/packjit")
            program.parent.mkdir(parents=True)
            program.symlink_to(PACKJIT)
            pathlib.Path(folder, "bench").symlink_to(ROOT / "bench")
            for line in "".join(blocks).splitlines():
                with self.subTest(line):
                    done = run("bash", "-c", line, cwd=folder)
                    self.assertEqual(done.returncode, 0, f"{line}\n{done.stderr}")
                    self.assertTrue(done.stdout or " -o " in line, line)
            plan = json.loads(pathlib.Path(folder, "plan.json").read_text())
            self.assertEqual(plan["tokens"], 6503676)
            self.assertIn("ssm_pack_bwd", pathlib.Path(folder, "ssm_pack_bwd.cu").read_text())


class DocumentedCommandsExist(unittest.TestCase):
    def help_of(self, *command):
        """Nothing for an unknown command: --help alone would show the program's own page for it."""
        done = run(PACKJIT, *command, "--help")
        return done.stdout if f"Usage: packjit {' '.join(command)} " in done.stdout else None

    def test_subcommands_and_options(self):
        """A command that is still to come stands on a line that says so."""
        mention = re.compile(r"(?:^|[\s/(])packjit ((?:(?:bench|cache|db) )?[a-z]+)\b([^#|&;]*)")
        seen = set()
        for document in documents():
            for code, line in code_in(document.read_text()):
                if "to come" in line:
                    continue
                for command, rest in mention.findall(code):
                    where = f"{document.relative_to(ROOT)}: {code}"
                    text = self.help_of(*command.split())
                    self.assertIsNotNone(text, f"no such command: {where}")
                    seen.add(command)
                    for option in re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", rest):
                        self.assertRegex(text, rf"(?m)(?<![\w-]){option}(?![\w-])", f"no option {option}: {where}")
        self.assertLessEqual({"pack", "generate", "compile", "inspect", "run", "verify", "doctor", "explain"}, seen)


class LinksResolve(unittest.TestCase):
    def test_links_between_documents(self):
        for document in documents():
            for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
                if not re.match(r"[a-z]+:", target):
                    path = document.parent / target.split("#")[0]
                    self.assertTrue(path.exists(), f"{document.relative_to(ROOT)} links to {target}")

    def test_pages_named_in_documents_and_help(self):
        """Also without a link: docs/plan_format.md, scripts/demo.sh."""
        texts = [(path, path.read_text()) for path in tracked_files() if path.suffix in (".md", ".cpp", ".hpp", ".sh", ".cuh")]
        for path, text in texts:
            for name in re.findall(r"(?<![\w/.-])((?:docs|scripts|bench)/[\w/]+\.(?:md|sh|py|txt))", text):
                self.assertTrue((ROOT / name).exists(), f"{path.relative_to(ROOT)} names {name}")


class ReadmeShowsTheMeasurements(unittest.TestCase):
    def test_table_is_that_of_the_results(self):
        done = run(sys.executable, ROOT / "scripts/readme_table.py", "--check")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_gain_of_the_shipped_database(self):
        said = re.search(r"(\d+) shapes, with ([\d.]+) % less time on average than the built-in configuration, (\d+) % at "
                         r"best,\s+tuned in (\d+) minutes", (ROOT / "README.md").read_text())
        entries = json.loads((ROOT / "database/shipped/nvidia_h200.json").read_text())["entries"]
        gains = [1 - entry["time"]["median_ms"] / entry["built_in"]["median_ms"] for entry in entries]
        runs = json.loads((ROOT / "bench/results/h200_tuning.json").read_text())["runs"]
        seconds = sum(run["seconds"] for run in runs)  # of which the database has entries, as that file's "about" says
        self.assertEqual(said.groups(), (str(len(entries)), f"{100 * sum(gains) / len(gains):.1f}",
                                         f"{100 * max(gains):.0f}", f"{seconds / 60:.0f}"))


class ReadmeShowsTheExample(unittest.TestCase):
    def test_every_line_is_compiled(self):
        block = re.search(r"```cpp\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL).group(1)
        source = [line.strip() for line in (ROOT / "examples/embed_cpp/main.cpp").read_text().splitlines()]
        code = [line.strip() for line in block.splitlines()]
        result = code.pop()
        self.assertTrue(result.startswith("// "))
        start = source.index(code[0])
        self.assertEqual(source[start:start + len(code)], code)


class NothingOfOneMachine(unittest.TestCase):
    def test_no_paths_or_names_of_a_machine(self):
        """Nobody's home, nor the folder or the machine that this test runs in."""
        names = [r"(?<![\w.])" + re.escape(str(ROOT)) + r"(?![\w-])", r"/(?:home|Users)/\w+", r"/root(?:/|\b)(?!\w)"]
        host = socket.gethostname()
        if len(host) > 6 and host != "localhost":
            names.append(re.escape(host))
        wrong = re.compile("|".join(f"(?:{name})" for name in names))
        for path in tracked_files():
            if path == pathlib.Path(__file__).resolve():
                continue
            found = wrong.search(path.read_bytes().decode("utf-8", "replace"))
            self.assertIsNone(found, f"{path.relative_to(ROOT)}: {found}")


class DemoTable(unittest.TestCase):
    """Small results with known sums."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        methods = [{"method": "next-fit", "fill_rate": 0.5, "rows": 20, "padding_tokens": 100,
                    "padding_avoided": {"to_pack_length": 300}}]
        packed = {"method": "local-greedy", "fill_rate": 0.9, "rows": 11, "padding_tokens": 10,
                  "padding_avoided": {"to_pack_length": 390}}
        self.write("pack", {"documents": 40, "tokens": 100, "longest": 12, "documents_cut": 1, "pack_length": 10,
                            "methods": methods + [packed], **packed})
        kernels = [{"registers": 40, "spill_store_bytes": 4, "spill_load_bytes": 8}, {"registers": 64}]
        for op in ("conv1d_pack_fwd", "conv1d_pack_bwd", "ssm_pack_fwd", "ssm_pack_bwd"):
            image = {"arch": "sm_90", "kernels": kernels, "seconds": 1.5, "spill_free": op != "ssm_pack_bwd"}
            self.write(f"compile-{op}", {"nvrtc": "13.0", "spec": "d_state=16", "images": [image]})
        self.write("verify", {
            "device": {"kind": "host", "name": "host execution", "arch": "host"},
            "tensors": [{"operator": op, "dtype": dtype, "tensor": "out", "error": 1e-7, "bound": 1e-5, "comparisons": 2,
                         "failed": 0}
                        for op in ("conv1d_pack_fwd", "conv1d_pack_bwd", "ssm_pack_fwd", "ssm_pack_bwd")
                        for dtype in ("fp32", "bf16")],
            "bits": [{"check": "isolation", "comparisons": 7, "failed": 0}, {"check": "repeat", "comparisons": 9, "failed": 0}]})

    def tearDown(self):
        self.folder.cleanup()

    def write(self, name, value):
        pathlib.Path(self.folder.name, f"{name}.json").write_text(json.dumps(value))

    def show(self, part):
        done = run(sys.executable, ROOT / "scripts/demo_table.py", part, self.folder.name)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_summary(self):
        text = self.show("summary")
        # 100 real tokens among 500: 100 and 400 of padding.
        self.assertIn("90.00 % of every row is real text; 50.00 % in arrival order, 20.00 % with padding", text)
        self.assertIn("4 operators for sm_90: 1 of 4 spill (ssm_pack_bwd sm_90), 6.0 s", text)
        self.assertIn("16 of 16 comparisons", text)
        self.assertIn("7 of 7 comparisons", text)
        self.assertNotIn("timed", text)

    def test_times_of_a_gpu(self):
        rows = [{"operator": op, "median_ms": ms, "memory_limit_ms": 0.5}
                for op, ms in (("conv1d_pack_fwd", 0.25), ("ssm_pack_fwd", 1.25), ("ssm_pack_bwd", 4.5))]
        self.write("bench", {"gpu": "a GPU", "dtype": "bf16", "sequences": 50, "repeats": 30, "operators": rows})
        self.assertRegex(self.show("bench"), r"ssm_pack_fwd +1\.250 ms +reading and writing alone 0\.500 ms")
        self.assertIn("scan 1.25 ms forward, 4.50 ms backward", self.show("summary"))

    def test_parts(self):
        self.assertRegex(self.show("pack"), r"padded +20\.00 % +50\n")
        self.assertRegex(self.show("compile"), r"ssm_pack_bwd +sm_90 +64 +12 +1\.50")
        self.assertRegex(self.show("verify"), r"ssm_pack_bwd +bf16 +out +1\.0e-07 +1\.0e-05")

    def test_without_a_usable_gpu_there_is_no_architecture(self):
        self.write("doctor", {"gpus": [{"arch": "sm_90"}], "can": {"run_on_gpu": False}})
        self.assertEqual(self.show("gpu").strip(), "")
        self.write("doctor", {"gpus": [{"arch": "sm_90"}], "can": {"run_on_gpu": True}})
        self.assertEqual(self.show("gpu").strip(), "sm_90")


class BootstrapTorch(unittest.TestCase):
    """scripts/bootstrap.sh --torch in a copy of the tree, with interpreters whose modules and pip are stand-ins."""

    WITHOUT = ", without transformers and matplotlib, whose tests are skipped\n"

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.folder.name, "tree with blank")
        (self.root / "scripts").mkdir(parents=True)
        shutil.copy(ROOT / "scripts/bootstrap.sh", self.root / "scripts")

    def tearDown(self):
        self.folder.cleanup()

    def interpreter(self, name, pip):
        """It has PyTorch, and no more than that needs."""
        venv.create(self.root / name)
        site, = (self.root / name).glob("lib/python*/site-packages")
        for module in ("torch", "numpy", "pytest"):
            (site / f"{module}.py").write_text("__version__ = '2.4'\n")
        (site / "pip.py").write_text(f"import pathlib, sys\n{pip}\n")
        return self.root / name / "bin/python"

    def bootstrap(self, **environment):
        environment = {**{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")
                          and name != "PACKJIT_PYTHON"}, **environment}
        return run(self.root / "scripts/bootstrap.sh", "--torch", cwd="/", env=environment)

    def test_an_interpreter_of_the_caller_is_left_as_it_is(self):
        python = self.interpreter("mine", "sys.exit('nobody asked')")
        done = self.bootstrap(PACKJIT_PYTHON=str(python))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(done.stdout, f"bootstrap: PyTorch: 2.4 of {python}{self.WITHOUT}")

    def test_its_own_gets_what_came_later(self):
        python = self.interpreter("build/python", "for name in ('transformers', 'matplotlib'):\n"
                                  "    pathlib.Path(__file__).with_name(f'{name}.py').touch()")
        done = self.bootstrap()
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(done.stdout, "bootstrap: installing with pip into build/python: transformers==5.* matplotlib\n"
                                      f"bootstrap: PyTorch: 2.4 of {python}\n")
        self.assertEqual(self.bootstrap().stdout, f"bootstrap: PyTorch: 2.4 of {python}\n")

    def test_without_a_network_its_own_is_used_as_it_is(self):
        python = self.interpreter("build/python", "sys.exit('no network')")
        done = self.bootstrap()
        self.assertEqual((done.returncode, done.stderr), (0, "no network\n"))
        self.assertTrue(done.stdout.endswith(f"PyTorch: 2.4 of {python}{self.WITHOUT}"), done.stdout)


class DemoScript(unittest.TestCase):
    """A copy with stand-ins for what it calls, so that every way it ends can be had."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        root = self.root = pathlib.Path(self.folder.name, "tree with blank")
        for name in ("scripts", "bin", "bench/data", "build/release/cli"):
            (root / name).mkdir(parents=True)
        for name in ("demo.sh", "demo_table.py"):
            shutil.copy(ROOT / "scripts" / name, root / "scripts")
        shutil.copy(ROOT / "bench/data/mixed_lengths.txt", root / "bench/data")
        self.stand_in("scripts/bootstrap.sh", "exit 0")
        self.stand_in("bin/cmake", "exit 0")
        self.stand_in("build/release/cli/packjit", "exit 0")

    def tearDown(self):
        self.folder.cleanup()

    def stand_in(self, name, body):
        (self.root / name).write_text(f"#!/bin/sh\n{body}\n")
        (self.root / name).chmod(0o755)

    def demo(self, *arguments):
        path = {**os.environ, "PATH": f"{self.root}/bin:{os.environ['PATH']}"}
        return run(self.root / "scripts/demo.sh", *arguments, cwd="/", env=path)

    def test_unknown_argument(self):
        done = self.demo("--frsh")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--frsh", done.stderr)

    def test_set_up_that_lacks_something(self):
        self.stand_in("scripts/bootstrap.sh", "echo 'bootstrap: not root' >&2; exit 3")
        done = self.demo()
        self.assertEqual((done.returncode, done.stderr), (3, "bootstrap: not root\n"))

    def test_failed_build_shows_why(self):
        self.stand_in("bin/cmake", 'case "$1" in --build) echo "broken.cpp:1: error"; exit 1;; esac')
        done = self.demo()
        self.assertEqual(done.returncode, 1)
        self.assertIn("broken.cpp:1: error", done.stderr)

    def test_checks_are_kept_until_something_changes(self):
        """Counts how often verify runs, on a machine with a GPU: there no architecture is named."""
        results = self.root / "given"
        results.mkdir()
        row = {"operator": "", "median_ms": 1.0, "memory_limit_ms": 0.5}
        operators = ("conv1d_pack_fwd", "conv1d_pack_bwd", "ssm_pack_fwd", "ssm_pack_bwd")
        method = {"method": "next-fit", "fill_rate": 0.5, "rows": 20, "padding_tokens": 100,
                  "padding_avoided": {"to_pack_length": 300}}
        image = {"arch": "sm_90", "kernels": [{"registers": 40}], "seconds": 1.5, "spill_free": True}
        given = {
            "doctor": {"gpus": [{"arch": "sm_90"}], "can": {"run_on_gpu": True}},
            "pack": {"documents": 40, "tokens": 100, "longest": 12, "documents_cut": 1, "pack_length": 10,
                     "methods": [method], **method},
            "compile": {"nvrtc": "13.0", "spec": "d_state=16", "images": [image]},
            "verify": {"device": {"kind": "cuda", "name": "a GPU", "arch": "sm_90"}, "bits": [],
                       "tensors": [{"operator": op, "dtype": dtype, "tensor": "out", "error": 0, "bound": 1e-5,
                                    "comparisons": 2, "failed": 0} for op in operators for dtype in ("fp32", "bf16")]},
            "bench": {"gpu": "a GPU", "dtype": "bf16", "sequences": 50, "repeats": 30,
                      "operators": [{**row, "operator": op} for op in operators]}}
        for name, value in given.items():
            (results / f"{name}.json").write_text(json.dumps(value))
        self.stand_in("build/release/cli/packjit", 'cd "$(dirname "$0")/../../.."; echo "$@" >>calls; cat "given/$1.json"')

        def verified(*arguments):
            (self.root / "calls").write_text("")
            done = self.demo(*arguments)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("scan 1.00 ms forward", done.stdout)
            calls = (self.root / "calls").read_text()
            self.assertNotIn("--arch", calls)
            return calls.count("verify --device cuda")

        self.assertEqual(verified(), 1)
        self.assertEqual(verified(), 0)
        self.assertEqual(verified("--fresh"), 1)
        (self.root / "bench/data/mixed_lengths.txt").write_text("5\n")
        self.assertEqual(verified(), 1)

    def test_failed_command_keeps_its_status(self):
        self.stand_in("build/release/cli/packjit", "echo 'packjit: wrong result' >&2; exit 4")
        done = self.demo()
        self.assertEqual(done.returncode, 4)
        self.assertIn("packjit: wrong result", done.stderr)
        self.assertIn("this command failed", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
