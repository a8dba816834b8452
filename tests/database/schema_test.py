#!/usr/bin/env python3
"""Holds database/schema.json against the golden document: schema_test.py ROOT"""

import copy
import json
import pathlib
import sys
import unittest

import jsonschema

ROOT = pathlib.Path(sys.argv[1])
SCHEMA = json.loads((ROOT / "database/schema.json").read_text())
GOLDEN = json.loads((ROOT / "tests/database/golden/database_v1.json").read_text())


def is_valid(document):
    return jsonschema.Draft202012Validator(SCHEMA).is_valid(document)


def objects_in(document, path=()):
    """The path of every object whose fields are fixed."""
    if isinstance(document, dict):
        if path and path[-1] in ("spec", "config"):
            return
        yield path
    for key, value in document.items() if isinstance(document, dict) else enumerate(document):
        if isinstance(value, (dict, list)):
            yield from objects_in(value, path + (key,))


def changed(path, change):
    document = copy.deepcopy(GOLDEN)
    inner = document
    for key in path:
        inner = inner[key]
    change(inner)
    return document


class Schema(unittest.TestCase):
    def test_is_a_schema(self):
        jsonschema.Draft202012Validator.check_schema(SCHEMA)

    def test_golden_document_fits(self):
        jsonschema.Draft202012Validator(SCHEMA).validate(GOLDEN)
        self.assertTrue(is_valid({"format": GOLDEN["format"], "version": {"major": 1, "minor": 0}, "entries": [], "failed": []}))

    def test_every_field_is_needed_and_others_are_taken(self):
        count = 0
        for path in objects_in(GOLDEN):
            inner = GOLDEN
            for key in path:
                inner = inner[key]
            for field in inner:
                with self.subTest(path=path, field=field):
                    self.assertFalse(is_valid(changed(path, lambda found: found.pop(field))))
                    count += 1
            self.assertTrue(is_valid(changed(path, lambda found: found.update(of_a_newer_version=1))), path)
        self.assertEqual(count, 5 + 2 + 6 + 2 * (16 + 4 + 4 + 4 + 4 + 2) + 8 + 4)

    def test_every_field_is_described(self):
        """Both ways: what the document has is in the schema, and has a kind there."""
        for kind, found in (("gpu", GOLDEN["gpu"]), ("entry", GOLDEN["entries"][0]), ("failed", GOLDEN["failed"][0])):
            self.assertEqual(list(SCHEMA["$defs"][kind]["properties"]), list(found))
            self.assertEqual(set(SCHEMA["$defs"][kind]["required"]), set(found))

    def test_values_out_of_range_are_refused(self):
        entry = ("entries", 0)
        for path, field, value in ((("version",), "major", 2), (entry, "operator", "matmul"), (entry, "limit_share", -1),
                                   (entry + ("check",), "error", 1.5), (entry + ("check",), "method", ""),
                                   (entry + ("bucket",), "spread", 3), (entry + ("bucket",), "dim", 16),
                                   (entry + ("time",), "median_ms", "fast"), (entry, "date", "yesterday"),
                                   (entry + ("config",), "block", 1.5), (("gpu",), "arch", "Hopper")):
            with self.subTest(path=path, field=field):
                self.assertFalse(is_valid(changed(path, lambda found: found.update({field: value}))))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
