#!/usr/bin/env python3
"""Installs the build and uses it as others would: test_install.py ROOT BUILD CC CXX [CASE...]

Each project is copied into an empty folder and built there against the installed tree, which has been moved once.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT, BUILD = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
CC, CXX = sys.argv[3:5]


# A blank, an accent and an umlaut, both quotes and another script.
NAME = "moved tré ü 'x' \"y\" 缓存"


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, **options)


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        staged = pathlib.Path(cls.folder.name, "staged")
        done = run("cmake", "--install", BUILD, "--prefix", staged)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        # Nothing in the tree may depend on where it was, nor on what its name has in it (K39).
        cls.prefix = staged.rename(pathlib.Path(cls.folder.name, NAME))
        cls.library_dir = next(cls.prefix.glob("lib*/**/libpackjit.so")).parent
        cls.environment = {**os.environ, "LD_LIBRARY_PATH": str(cls.library_dir),
                           "PKG_CONFIG_PATH": str(cls.library_dir / "pkgconfig")}

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def succeeds(self, *command, **options):
        done = run(*command, env=self.environment, **options)
        self.assertEqual(done.returncode, 0, f"{command}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def empty_copy(self, example):
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.folder.name))
        shutil.copytree(ROOT / "examples" / example, folder / "project")
        return folder

    def build(self, example, language, compiler):
        folder = self.empty_copy(example)
        self.succeeds("cmake", "-S", "project", "-B", "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={self.prefix}",
                      f"-DCMAKE_{language}_COMPILER={compiler}", cwd=folder)
        self.succeeds("cmake", "--build", "build", cwd=folder)
        return folder / "build" / example

    def test_what_is_there(self):
        files = {str(path.relative_to(self.prefix)) for path in self.prefix.rglob("*") if not path.is_dir()}
        library = self.library_dir.relative_to(self.prefix)
        for name in ("include/packjit/packjit.h", "include/packjit/packjit.hpp", "bin/packjit", f"{library}/libpackjit.so",
                     f"{library}/libpackjit.so.0", f"{library}/cmake/packjit/packjitConfig.cmake",
                     f"{library}/cmake/packjit/packjitConfigVersion.cmake", f"{library}/pkgconfig/packjit.pc"):
            self.assertIn(name, files)
        for name in files:
            self.assertRegex(name, r"^(include/packjit/\w+\.hp?p?|bin/packjit|.*libpackjit\.so[.\d]*|.*\.cmake|.*\.pc)$")

    def test_texts_name_no_place(self):
        for path in self.prefix.rglob("*"):
            if path.suffix in (".cmake", ".pc", ".h", ".hpp"):
                self.assertNotIn(self.folder.name, path.read_text(), path)
                self.assertNotIn(str(ROOT) + "/", path.read_text(), path)

    def test_program_runs(self):
        text = self.succeeds(self.prefix / "bin/packjit", "generate", "conv1d_pack_fwd")
        self.assertIn("conv1d_pack_fwd", text)
        needed = re.findall(r"\(NEEDED\).*\[([^\]]+)\]", self.succeeds("readelf", "-d", self.prefix / "bin/packjit"))
        self.assertFalse([name for name in needed if "fmt" in name or "boost" in name], needed)

    def test_K39_program_works_where_its_name_is_unusual(self):
        program = self.prefix / "bin/packjit"
        environment = {**self.environment, "PACKJIT_CACHE_DIR": str(self.prefix / "cache é 缓存"), "TMPDIR": str(self.prefix)}
        done = run(program, "doctor", "--json", env=environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads(done.stdout)
        self.assertEqual(found["disk_cache"]["folder"], environment["PACKJIT_CACHE_DIR"])
        if not found["can"]["run_on_host"]:
            self.skipTest("no host compiler")
        done = run(program, "verify", "--device", "host", "--quick", "--json", env=environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIs(json.loads(done.stdout)["pass"], True)

    def test_cpp_through_find_package(self):
        text = self.succeeds(self.build("embed_cpp", "CXX", CXX), "host")
        self.assertEqual(text, "1 3 6 10 14 10 30 60 \n" + "0.100 0.200 0.300 0.400 \n" * 2)

    def test_c_through_find_package(self):
        self.assertEqual(self.succeeds(self.build("embed_c", "C", CC)), "1 3 6 10 14 10 30 60 \n")

    def test_c_through_pkg_config(self):
        if shutil.which("pkg-config") is None:
            self.skipTest("no pkg-config")
        folder = self.empty_copy("embed_c")
        # pkg-config itself cannot say a folder with quotes in its name; blanks and other scripts it can.
        prefix = pathlib.Path(self.folder.name, "moved tré ü 缓存")
        shutil.copytree(self.prefix, prefix, symlinks=True)
        library = prefix / self.library_dir.relative_to(self.prefix)
        self.environment = {**self.environment, "LD_LIBRARY_PATH": str(library), "PKG_CONFIG_PATH": str(library / "pkgconfig")}
        self.succeeds("sh", "-c", f"eval {CC} -std=c11 -Wall -Wextra -Werror project/main.c -o program "
                      '"$(pkg-config --cflags --libs packjit)"', cwd=folder)
        self.assertEqual(self.succeeds(folder / "program"), "1 3 6 10 14 10 30 60 \n")
        self.assertEqual(self.succeeds("pkg-config", "--modversion", "packjit").strip(), "0.1.0")

    def test_another_minor_version_is_not_found(self):
        folder = self.empty_copy("embed_c")
        text = (folder / "project/CMakeLists.txt").read_text()
        (folder / "project/CMakeLists.txt").write_text(text.replace("packjit 0.1 ", "packjit 0.2 "))
        done = run("cmake", "-S", "project", "-B", "build", f"-DCMAKE_PREFIX_PATH={self.prefix}", cwd=folder)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("0.1.0", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
