#!/usr/bin/env python3
"""Holds libpackjit against what it promises: test_library.py ROOT LIBRARY CC CXX [CASE...]"""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT, LIBRARY = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
CC, CXX = sys.argv[3:5]


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, **options)


class Symbols(unittest.TestCase):
    def test_only_the_c_interface_is_exported(self):
        done = run("nm", "-D", "--defined-only", LIBRARY)
        self.assertEqual(done.returncode, 0, done.stderr)
        exported = {line.split()[2] for line in done.stdout.splitlines()}
        self.assertIn("PACKJIT_1", exported)
        exported.discard("PACKJIT_1")
        header = (ROOT / "include/packjit/packjit.h").read_text()
        declared = set(re.findall(r"PACKJIT_API [\w* ]*?\b(packjit_\w+)\(", header))
        self.assertIn("packjit_device_open", declared)
        self.assertEqual(exported, {f"{name}@@PACKJIT_1" for name in declared})

    def test_nothing_runs_when_it_is_loaded(self):
        """The compiler names what initialises a source's static objects."""
        done = run("nm", "-C", LIBRARY)
        self.assertIn("packjit_device_open", done.stdout)
        self.assertNotIn("global constructors keyed to", done.stdout)
        self.assertNotIn("_GLOBAL__sub_I", done.stdout)

    def test_nothing_unusual_is_needed(self):
        done = run("readelf", "-d", LIBRARY)
        needed = set(re.findall(r"\(NEEDED\).*\[([^\]]+)\]", done.stdout))
        allowed = {"libstdc++.so.6", "libc++.so.1", "libm.so.6", "libgcc_s.so.1", "libc.so.6", "libdl.so.2", "libpthread.so.0"}
        self.assertTrue(needed)
        self.assertLessEqual({name for name in needed if not name.startswith("ld-linux")}, allowed)
        self.assertRegex(done.stdout, r"SONAME.*\[libpackjit\.so\.0\]")
        self.assertIn("NODELETE", done.stdout)
        # A process that has loaded much, PyTorch for instance, has no room left for it.
        self.assertNotIn("STATIC_TLS", done.stdout)


class Headers(unittest.TestCase):
    warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror", "-fsyntax-only"]

    def compiles(self, compiler, suffix, options, text):
        """Alone in an empty folder: nothing of the tree but its include folder."""
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder, "alone" + suffix)
            source.write_text(text)
            done = run(compiler, *options, *self.warnings, f"-I{ROOT}/include", source, cwd=folder)
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_c_header_as_c11_and_cpp20(self):
        text = "#include <packjit/packjit.h>\npackjit_tensor tensor;\n"
        self.compiles(CC, ".c", ["-std=c11"], text)
        self.compiles(CXX, ".cpp", ["-std=c++20"], text)
        self.compiles(CXX, ".cpp", ["-std=c++11"], text)

    def test_each_cpp_header_as_cpp20(self):
        for header in sorted((ROOT / "include/packjit").glob("*.hpp")):
            with self.subTest(header.name):
                self.compiles(CXX, ".cpp", ["-std=c++20"], f"#include <packjit/{header.name}>\n")

    def test_cpp_header_without_exceptions(self):
        self.compiles(CXX, ".cpp", ["-std=c++20", "-fno-exceptions", "-fno-rtti"], "#include <packjit/packjit.hpp>\n")


class Documents(unittest.TestCase):
    def test_every_function_is_documented(self):
        """docs/embedding.md names each family of calls in both languages."""
        text = (ROOT / "docs/embedding.md").read_text()
        for name in re.findall(r"PACKJIT_API [\w* ]*?\b(packjit_\w+)\(", (ROOT / "include/packjit/packjit.h").read_text()):
            self.assertIn(name, text, "docs/embedding.md does not name it")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
