"""packjit._c says what include/packjit/packjit.h says."""

import ctypes
import pathlib
import re

from packjit import _c

HEADER = re.sub(r"/\*.*?\*/", "", (pathlib.Path(__file__).parents[2] / "include/packjit/packjit.h").read_text(),
                flags=re.DOTALL)
KINDS = {"size_t": ctypes.c_size_t, "int32_t": ctypes.c_int32, "int64_t": ctypes.c_int64, "uint64_t": ctypes.c_uint64,
         "float": ctypes.c_float, "double": ctypes.c_double, "char": ctypes.c_char, "void*": ctypes.c_void_p,
         "const char*": ctypes.c_char_p}


def kind_of(text):
    if text in KINDS:
        return KINDS[text]
    pointed = re.fullmatch(r"const (\w+)\*", text)[1]
    return ctypes.POINTER(KINDS.get(pointed) or getattr(_c, pointed))


def test_numbers():
    numbers = {name: int(value) for name, value in re.findall(r"PACKJIT_(\w+) = (\d+)", HEADER)}
    assert len(numbers) > 30 and numbers["NOT_PREPARED_IN_CAPTURE"] == 5
    for name, value in numbers.items():
        assert getattr(_c, name) == value, name


def members_of(body):
    found = []
    for line in filter(None, (line.strip() for line in body.split(";"))):
        kind, names = re.fullmatch(r"((?:const )?\w+\*?)\s+(.*)", line, re.DOTALL).groups()
        for name in names.split(","):
            array = re.fullmatch(r"(\w+)\[(\d+)\]", name.strip())
            if array:
                found.append((array[1], kind_of(kind) * int(array[2])))
            else:
                found.append((name.strip(), kind_of(kind)))
    return found


def test_structs():
    structs = re.findall(r"typedef struct \{(.*?)\} (packjit_\w+);", HEADER, re.DOTALL)
    assert len(structs) >= 12
    for body, name in structs:
        assert list(getattr(_c, name)._fields_) == members_of(body), name
    declared = {name for name, value in vars(_c).items()
                if isinstance(value, type) and issubclass(value, ctypes.Structure) and name.startswith("packjit_")}
    assert declared == {name for _, name in structs}


def test_functions():
    """Names, numbers of arguments, and which of them are numbers: everything else is an address."""
    functions = re.findall(r"PACKJIT_API ([\w\s*]*?)\b(packjit_\w+)\(([^)]*)\)", HEADER)
    assert {name for _, name, _ in functions} == set(_c.PROTOTYPES)
    for result, name, arguments in functions:
        expected = {"packjit_status": ctypes.c_int32, "int32_t": ctypes.c_int32, "const char*": ctypes.c_char_p,
                    "void*": ctypes.c_void_p, "void": None}[result.strip()]
        found, types = _c.PROTOTYPES[name]
        assert found is expected, name
        arguments = [] if arguments.strip() == "void" else arguments.split(",")
        assert len(types) == len(arguments), name
        for kind, argument in zip(types, arguments):
            is_number = "*" not in argument
            assert (kind in (ctypes.c_int32, ctypes.c_int64)) == is_number, f"{name}: {argument}"
