#!/usr/bin/env python3
"""packjit db and packjit explain on the golden document: db_command_test.py ROOT PACKJIT"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(sys.argv[1])
PACKJIT = sys.argv[2]
GOLDEN = ROOT / "tests/database/golden/database_v1.json"


class Command(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)

    def run_packjit(self, *words, status=0, database=None):
        environment = dict(os.environ, PACKJIT_DATABASE_DIR=database or str(self.path / "user"))
        done = subprocess.run([PACKJIT, *map(str, words)], capture_output=True, text=True, env=environment)
        self.assertEqual(done.returncode, status, done.stderr)
        return done.stderr if status else done.stdout

    def json_of(self, *words, **options):
        return json.loads(self.run_packjit(*words, "--json", **options))

    def changed(self, name, change):
        document = json.loads(GOLDEN.read_text())
        change(document)
        path = self.path / name
        path.write_text(json.dumps(document))
        return path


class Db(Command):
    def of_user(self, what):
        """What a command says of the user's databases, without those that were shipped."""
        databases = self.json_of("db", what)["databases"]
        return [database for database in databases if "shipped" not in database.get("origin", "")]

    def test_merge_list_show_prune(self):
        self.assertEqual(self.of_user("list"), [])
        self.assertIn("the database shipped with packjit: NVIDIA H200 (sm_90), ", self.run_packjit("db", "list"))
        self.assertIn("merged 2 entries and 1 failed candidates into ", self.run_packjit("db", "merge", GOLDEN))
        found = self.of_user("list")
        self.assertEqual([(item["entries"], item["failed"], item["unusable"]) for item in found], [(2, 1, 0)])
        document = self.of_user("show")[0]["document"]
        self.assertEqual(document, json.loads(GOLDEN.read_text()))
        self.assertIn("failed: conv1d_pack_fwd block=64", self.run_packjit("db", "show"))
        self.run_packjit("db", "merge", GOLDEN)  # again: nothing new
        self.assertEqual(self.of_user("show")[0]["document"], document)
        self.assertEqual(self.of_user("check")[0]["outdated"], 2)
        self.assertEqual(len(self.json_of("db", "prune", "--failed")["removed"]), 1)
        self.assertEqual(len(self.json_of("db", "prune")["removed"]), 2)
        self.assertEqual(self.of_user("list")[0]["entries"], 0)

    def test_merge_says_where_the_document_could_not_be_written(self):
        def newer(document):
            document.write_text(document.read_text().replace('"major": 1', '"major": 2'))

        def folder(document):
            document.unlink()
            document.mkdir()

        def link(document):
            document.rename(self.path / "elsewhere.json")
            document.symlink_to(self.path / "elsewhere.json")
        for number, (change, said) in enumerate(((newer, "use a newer packjit for it"),
                                                 (folder, "what lies there is no regular file; move it away"),
                                                 (link, "it is a link, which is not followed"))):
            user = str(self.path / f"user{number}")
            self.run_packjit("db", "merge", GOLDEN, database=user)
            change(next(pathlib.Path(user).glob("*.json")))
            message = self.run_packjit("db", "merge", GOLDEN, status=3, database=user)
            self.assertIn(f"the records of '{GOLDEN}' are in the journal of ", message)
            self.assertIn(said, message)

    def test_merge_keeps_what_is_never_used(self):
        def newer(document):
            document["version"]["minor"] = 7
            document["colour"] = "green"
            document["entries"][0]["config"]["block"] = 7
        self.run_packjit("db", "merge", self.changed("newer.json", newer))
        document = self.of_user("show")[0]["document"]
        self.assertEqual(document["colour"], "green")
        self.assertEqual(document["version"]["minor"], 7)
        self.assertEqual(len(document["entries"]), 2)
        self.assertEqual(self.of_user("list")[0]["unusable"], 1)

    def test_an_architecture_is_no_path(self):
        for arch in ("../escaped", "sm_", "sm_90/x", "90"):
            bad = self.changed("bad.json", lambda document: document["gpu"].update(arch=arch))
            self.assertIn("gpu.arch: expected an architecture like sm_90, found '%s'" % arch,
                          self.run_packjit("db", "merge", bad, status=2))

    def test_a_key_that_is_there_twice_is_damage(self):
        twice = self.path / "twice.json"
        text = GOLDEN.read_text().rstrip()
        twice.write_text(text[:-1] + ', "entries": []}')
        self.assertIn("expected every key once, found", self.run_packjit("db", "merge", twice, status=2))

    def test_a_file_in_place_of_the_folder(self):
        place = self.path / "file"
        place.write_text("x")
        self.assertIn("cannot read the folder of tuning databases",
                      self.run_packjit("db", "list", status=3, database=place))

    def test_merge_into_a_file(self):
        other = self.changed("other.json", lambda document: document["entries"][0]["time"].update(median_ms=0.2))
        out = self.path / "all.json"
        self.run_packjit("db", "merge", GOLDEN, other, "-o", out)
        first = out.read_bytes()
        self.run_packjit("db", "merge", other, GOLDEN, "-o", out)
        self.assertEqual(out.read_bytes(), first)
        self.assertEqual(json.loads(first)["entries"][0]["time"]["median_ms"], 0.2)
        another = self.changed("gpu.json", lambda document: document["gpu"].update(multiprocessors=114))
        message = self.run_packjit("db", "merge", GOLDEN, another, "-o", out, status=2)
        self.assertIn(f"cannot merge '{another}': a database holds what was measured on one GPU model", message)
        self.assertEqual(out.read_bytes(), first)

    def test_diff(self):
        other = self.changed("other.json", lambda document: (document["entries"][0]["time"].update(median_ms=0.2),
                                                             document["entries"].pop(1)))
        found = self.json_of("db", "diff", GOLDEN, other)
        self.assertEqual({key: len(value) for key, value in found.items()},
                         {"only_a": 1, "only_b": 0, "changed": 1, "failed_only_a": 0, "failed_only_b": 0,
                          "unusable_a": 0, "unusable_b": 0})
        self.assertEqual(found["changed"][0]["b"]["time"]["median_ms"], 0.2)
        self.assertIn("1 changed", self.run_packjit("db", "diff", GOLDEN, other))

    def test_diff_of_two_gpu_models_is_refused(self):
        another = self.changed("gpu.json", lambda document: document["gpu"].update(multiprocessors=114))
        self.assertIn("what was measured on two GPU models differs anyway",
                      self.run_packjit("db", "diff", GOLDEN, another, status=2))

    def test_diff_says_what_is_there_and_not_used(self):
        bad = self.changed("bad.json", lambda document: document["entries"][0]["config"].update(block=33))
        found = self.json_of("db", "diff", GOLDEN, bad)
        self.assertEqual((len(found["only_a"]), len(found["unusable_a"]), len(found["unusable_b"])), (1, 0, 1))
        self.assertIn(f"? not used in {bad}: entry \"conv1d_pack_fwd\" {{", self.run_packjit("db", "diff", GOLDEN, bad))

    def test_prune_of_two_files_reads_both_before_it_writes_one(self):
        bad = self.changed("bad.json", lambda document: document["entries"][0]["config"].update(block=33))
        before = bad.read_bytes()
        damaged = self.path / "damaged.json"
        damaged.write_bytes(GOLDEN.read_bytes()[:-5])
        for second in (damaged, self.path / "none.json"):
            self.run_packjit("db", "prune", bad, second, status=2)
            self.assertEqual(bad.read_bytes(), before)

    def current(self, name, **changes):
        """The golden document with its first entry as if it had been tuned with the sources of this packjit."""
        listed = self.json_of("db", "prune", self.changed("digests.json", lambda document: None))["removed"]
        digest = re.search(r"now ([0-9a-f]+)\)", listed[0]).group(1)
        return self.changed(name, lambda document: (document["entries"].pop(1),
                                                    document["entries"][0].update(source_digest=digest, **changes)))

    def test_an_outdated_entry_does_not_replace_a_current_one(self):
        """Of the same date, or a later one, and faster."""
        def faster(date):
            return lambda document: (document["entries"].pop(1), document["entries"][0].update(date=date),
                                     document["entries"][0]["time"].update(low_ms=0.001, median_ms=0.001))
        current = self.current("current.json", date="2026-03-15")
        for number, date in enumerate(("2026-03-15", "2026-04-01")):
            outdated = self.changed(f"outdated{number}.json", faster(date))
            for order in ((current, outdated), (outdated, current)):
                out = self.path / "all.json"
                self.run_packjit("db", "merge", *order, "-o", out)
                expected = json.loads(current.read_text())["entries"][0]["source_digest"]
                merged = json.loads(out.read_text())["entries"]
                self.assertEqual([entry["source_digest"] for entry in merged], [expected])
                with tempfile.TemporaryDirectory() as user:
                    for path in order:
                        self.run_packjit("db", "merge", path, database=user)
                    databases = self.json_of("db", "show", database=user)["databases"]
                    entries = [entry for database in databases if "shipped" not in database["origin"]
                               for entry in database["document"]["entries"]]
                    self.assertEqual([entry["source_digest"] for entry in entries], [expected])

    def test_check_names_the_entry(self):
        bad = self.changed("bad.json", lambda document: document["entries"][0]["config"].update(block=33))
        message = self.run_packjit("db", "check", bad, status=4)
        self.assertRegex(message,
                         r'bad\.json: entry "conv1d_pack_fwd" \{"dim":\d+,.*\} "2026-[^"]*": impossible config')

    def test_check_refuses_dates_and_measurements_that_there_are_not(self):
        for change, said in (({"date": "2026-13-01"}, "date is '2026-13-01'"), ({"date": "2026-02-30"}, "date is"),
                             ({"date": "2026-03-15T24:00:00Z"}, "date is"), ({"limit_share": 1e6}, "limit_share is"),
                             ({"lowest_mhz": 2000, "highest_mhz": 1000}, "its clocks are none"),
                             ({"highest_mhz": 1_000_000_000}, "its clocks are none"),
                             ({"time": {"median_ms": 1e9, "low_ms": 1, "high_ms": 1e9, "rounds": 3}},
                              "its times are none")):
            bad = self.changed("bad.json", lambda document, change=change: document["entries"][0].update(change))
            self.assertIn(said, self.run_packjit("db", "check", bad, status=4))

    def test_check_finds_the_document_of_another_gpu_model(self):
        self.run_packjit("db", "merge", GOLDEN)
        document = next((self.path / "user").glob("*.json"))
        document.rename(document.with_name("sm_90_114sm_00000000.json"))
        self.assertIn(f"whose file is {document.name}, so its entries are never used",
                      self.run_packjit("db", "check", status=4))

    def test_check(self):
        self.assertIn("0 records that are not used", self.run_packjit("db", "check", GOLDEN))
        bad = self.changed("bad.json", lambda document: document["entries"][0]["config"].update(block=33))
        self.assertIn("impossible config: block = 33 must be a multiple of 32 threads",
                      self.run_packjit("db", "check", bad, status=4))
        damaged = self.path / "damaged.json"
        damaged.write_bytes(GOLDEN.read_bytes()[:-5])
        self.assertIn("not JSON", self.run_packjit("db", "check", damaged, status=4))
        newer = self.changed("newer.json", lambda document: document["version"].update(major=2))
        self.assertIn("it has version 2.0, and this packjit reads versions up to 1.x; use a newer packjit for it",
                      self.run_packjit("db", "check", newer, status=4))
        self.assertIn("No such file or directory", self.run_packjit("db", "check", self.path / "none.json", status=2))
        self.run_packjit("db", "merge", GOLDEN)
        journal = next((self.path / "user").glob("*.json")).with_suffix(".journal")
        journal.write_text("damage\n")
        self.assertIn("it does not begin with a checksum", self.run_packjit("db", "check", status=4))

    def test_a_name_cannot_write_to_the_terminal(self):
        name = "H\x1b[2J\n200\x7f\u009b gr\u00fcn"
        named = self.changed("named.json", lambda document: document["gpu"].update(name=name))
        another = self.changed("another.json", lambda document: document["gpu"].update(name=name, multiprocessors=114))
        explain = ("explain", *Explain.shape)
        for status, words in ((0, ("db", "show", named)), (2, ("db", "diff", named, another)),
                              (2, ("db", "merge", named, another, "-o", self.path / "all.json")),
                              (0, (*explain, "--database", named)), (0, (*explain, "--database", named, "--arch", "sm_90")),
                              (2, (*explain, "--database", named, "--database", another))):
            self.assertIn("H\\x1b[2J\\x0a200\\x7f", self.run_packjit(*words, status=status))
        self.run_packjit("db", "merge", named)
        for words in (("db", "list"), ("db", "show")):
            self.assertIn("H\\x1b[2J\\x0a200\\x7f", self.run_packjit(*words))
        self.assertIn("gr\u00fcn", self.run_packjit("db", "list"))
        self.assertNotIn("\u009b", self.run_packjit("db", "list"))
        self.assertEqual(self.of_user("list")[0]["gpu"]["name"], name)

    def test_bad_input(self):
        self.assertIn("No such file or directory", self.run_packjit("db", "show", self.path / "none.json", status=2))
        self.assertIn("it is not a regular file", self.run_packjit("db", "diff", self.path, GOLDEN, status=2))
        self.assertIn("Input/output error; give a file", self.run_packjit("db", "show", "/proc/self/mem", status=2))
        self.assertIn("PACKJIT_DATABASE_DIR is off", self.run_packjit("db", "list", status=3, database="off"))

    def test_doctor_shows_them(self):
        self.run_packjit("db", "merge", GOLDEN)
        found = self.json_of("doctor")["databases"]
        self.assertTrue(found["usable"])
        self.assertEqual([name[:12] for name in found["names"]], ["sm_90_132sm_"])
        self.assertIn("1 tuning databases", self.run_packjit("doctor"))
        self.assertEqual(self.json_of("doctor", database="off")["databases"]["problem"], "PACKJIT_DATABASE_DIR is off")

    def test_doctor_lists_what_is_unusable_as_missing(self):
        place = self.path / "file"
        place.write_text("x")
        self.assertIn("- tuned Configs of this user are not used: ", self.run_packjit("doctor", database=place))
        self.assertNotIn("- tuned Configs", self.run_packjit("doctor", database="off"))
        with mock.patch.dict(os.environ, PACKJIT_CACHE_DIR=str(place)):
            self.assertIn("- compiled kernels are not kept on disk: cannot open the folder", self.run_packjit("doctor"))
            os.environ["PACKJIT_CACHE_BYTES"] = "0"
            self.assertNotIn("- compiled kernels are not kept", self.run_packjit("doctor"))
        for capture, said in ((self.path, "it is a folder"), (self.path / "none" / "file", "No such file or directory"),
                              ("/dev/null", "it is no regular file")):
            os.environ["PACKJIT_CAPTURE"] = str(capture)
            try:
                self.assertIn(f"shapes will not be recorded: {said}", self.run_packjit("doctor"))
                self.assertIn(said, self.json_of("doctor")["capture"]["problem"])
                os.environ["PACKJIT_CAPTURE"] = str(self.path / "shapes.jsonl")
                self.assertIsNone(self.json_of("doctor")["capture"]["problem"])
                self.assertFalse((self.path / "shapes.jsonl").exists())
            finally:
                del os.environ["PACKJIT_CAPTURE"]

    def test_prune_of_a_file(self):
        bad = self.changed("bad.json", lambda document: document["entries"][0]["config"].update(block=33))
        self.run_packjit("db", "prune", "--unusable", bad)
        self.assertEqual(len(json.loads(bad.read_text())["entries"]), 1)


class Explain(Command):
    shape = ("conv1d_pack_fwd", "--tokens", "4000", "--dim", "1536")

    def test_outcomes(self):
        for words, outcome, rejected in ((self.shape, "exact", 0),
                                         (("conv1d_pack_fwd", "--tokens", "6000", "--dim", "1536"), "nearest shape", 1),
                                         (("conv1d_pack_fwd", "--tokens", "60000", "--dim", "1536"), "built-in", 3)):
            found = self.json_of("explain", *words, "--database", GOLDEN)
            self.assertEqual((found["outcome"], len(found["rejected"])), (outcome, rejected))
        self.assertEqual(self.json_of("explain", *self.shape, "--database", GOLDEN)["config"]["tile_tokens"], "24")
        found = self.json_of("explain", *self.shape, "--arch", "sm_90", "--database", GOLDEN)
        self.assertEqual(found["outcome"], "same architecture")
        self.assertEqual(self.json_of("explain", *self.shape, "--arch", "sm_80", "--database", GOLDEN)["outcome"],
                         "built-in")

    def test_the_users_database_is_asked(self):
        self.run_packjit("db", "merge", GOLDEN)
        self.assertEqual(self.json_of("explain", *self.shape, "--arch", "sm_90")["outcome"], "same architecture")
        off = self.json_of("explain", *self.shape, "--arch", "sm_90", database="off")
        self.assertEqual(off["outcome"], "built-in")

    def test_a_document_under_another_models_name_is_not_asked(self):
        self.run_packjit("db", "merge", GOLDEN)
        document = next((self.path / "user").glob("*.json"))
        document.rename(document.with_name("sm_90_114sm_00000000.json"))
        self.assertNotIn("00000000", self.json_of("explain", *self.shape, "--arch", "sm_90")["origin"])

    def test_a_rejected_entry_is_shown(self):
        small = self.changed("small.json", lambda document: document["gpu"].update(shared_bytes_per_block=8192))
        text = self.run_packjit("explain", "ssm_pack_bwd", "--tokens", "32768", "--sequences", "54", "--longest", "2048",
                                "--database", small)
        self.assertIn("not     exact: " + str(small) + ", Test GPU entry of 2026-03-15T08:30:00Z", text)
        self.assertIn("bytes of shared memory a block, the GPU has 8192", text)
        self.assertIn("taken   built-in: ", text)

    def test_bad_input(self):
        self.assertIn("--longest 50: the longest sequence has at most all tokens (40)",
                      self.run_packjit("explain", "ssm_pack_fwd", "--tokens", "40", "--longest", "50", "--arch", "sm_90",
                                       status=2))
        self.run_packjit("explain", "ssm_pack_fwd", "--tokens", "0", status=2)
        forty = ("explain", "ssm_pack_fwd", "--arch", "sm_90", "--tokens", "40")
        self.assertIn("--sequences 3: so many of at most 10 tokens (--longest) are fewer than --tokens 40; give at "
                      "least 4", self.run_packjit(*forty, "--sequences", "3", "--longest", "10", status=2))
        self.assertIn("--longest 38: beside it the other 3 sequences have at least a token each",
                      self.run_packjit(*forty, "--sequences", "4", "--longest", "38", status=2))
        another = self.changed("gpu.json", lambda document: document["gpu"].update(multiprocessors=114))
        self.assertIn("two GPU models: which one is asked about?",
                      self.run_packjit("explain", *self.shape, "--database", GOLDEN, "--database", another, status=2))
        message = self.run_packjit("explain", "ssm_pack_fwd", "--gpu", "99", status=3)
        self.assertIn("there is no GPU with number 99 here", message)
        self.assertIn("--arch sm_90", message)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
