#!/usr/bin/env python3
"""Holds scripts/bench_peers.py to what it says where there is no PyTorch: test_bench_peers.py SCRIPT"""

import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest

SCRIPT = pathlib.Path(sys.argv.pop(1)).resolve()
spec = importlib.util.spec_from_file_location("bench_peers", SCRIPT)
bench_peers = importlib.util.module_from_spec(spec)
spec.loader.exec_module(bench_peers)


def run(*arguments):
    """Without any installed package."""
    return subprocess.run([sys.executable, "-I", "-S", SCRIPT, *arguments], capture_output=True, text=True,
                          stdin=subprocess.DEVNULL)


class WithoutPackages(unittest.TestCase):
    def test_says_what_is_missing_and_how_to_install_it(self):
        done = run("--lengths", "5,3")
        self.assertEqual(done.returncode, 3)
        for package in ("torch", "mamba_ssm", "causal_conv1d"):
            self.assertIn(f"{package} cannot be imported", done.stderr)
        self.assertIn("-m pip install mamba-ssm --no-build-isolation", done.stderr)
        self.assertEqual(done.stdout, "")

    def test_bad_usage(self):
        self.assertEqual(run().returncode, 2)
        self.assertEqual(run("--lengths", "5", "--report", "x").returncode, 2)
        self.assertEqual(run("--lengths", "5", "--dtype", "fp8").returncode, 2)

    def test_a_report_or_lengths_that_are_none_are_named(self):
        for option, value, message in (("--report", "none.json", "is no report of `packjit bench ops --json`"),
                                       ("--report", __file__, "is no report of `packjit bench ops --json`"),
                                       ("--lengths", "5,x", "--lengths is '5,x', expected numbers")):
            done = run(option, value)
            self.assertEqual(done.returncode, 2)
            self.assertIn(message, done.stderr)

    def test_a_file_that_cannot_be_written_is_refused_before_the_work(self):
        for name, message in ((str(SCRIPT.parent), "is a folder: give the file to write"),
                              ("none/peers.json", "cannot be written, since none is no folder")):
            done = run("--lengths", "5,3", "--out", name)
            self.assertEqual(done.returncode, 2)
            self.assertIn(message, done.stderr)


class Work(unittest.TestCase):
    def given(self, **options):
        return types.SimpleNamespace(**{"report": None, "lengths": None, "dim": 8, "d_state": 16, "conv_width": 4,
                                        "dtype": "bf16", "repeats": 3, **options})

    def test_from_options_and_from_a_report(self):
        work = bench_peers.work_of(self.given(lengths="5,3"))
        self.assertEqual((work["lengths"], work["seqlen"], work["dim"]), ([[5, 3]], 8, 8))
        with tempfile.TemporaryDirectory() as folder:
            report = pathlib.Path(folder, "report.json")
            report.write_text(json.dumps({**work, "seqlen": 9, "gpu": "a GPU"}))
            self.assertEqual(bench_peers.work_of(self.given(report=report)), {**work, "seqlen": 9})

    def test_boundaries(self):
        self.assertEqual(bench_peers.seq_idx_of([[2, 1], [4]], 4), [[0, 0, 1, 2], [0, 0, 0, 0]])
        self.assertEqual(bench_peers.places_of([[2, 1], [4]]), [(0, 0, 2), (0, 2, 3), (1, 0, 4)])

    def test_spread(self):
        self.assertEqual(bench_peers.spread([11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1]),
                         {"median_ms": 6, "p10_ms": 2, "p90_ms": 10})

    def test_table(self):
        rows = [{"operator": "ssm_pack_bwd", "peer": "mamba_ssm", "way": "padded", "median_ms": 30.1, "p10_ms": 30.0,
                 "p90_ms": 30.2, "giga_elements_per_second": 4.5},
                {"operator": "conv1d_pack", "peer": "causal_conv1d", "way": "rows", "skipped": "no memory"}]
        text = bench_peers.table({"rows": rows})
        self.assertRegex(text, r"ssm_pack_bwd mamba_ssm +padded +30\.1000 +30\.0000 +30\.2000 +4\.5")
        self.assertIn("skipped: no memory", text)
        self.assertLessEqual(max(map(len, text.splitlines())), 110)


if __name__ == "__main__":
    unittest.main()
