"""Finds and loads libpackjit, once a process, when it is first needed."""

from __future__ import annotations

import ctypes
import functools
import os
import pathlib
import threading

from packjit import _c
from packjit.errors import MissingEnvironment, error_of

NAME = "libpackjit.so.0"
_lock = threading.Lock()
_loaded = None


def path() -> str:
    """Where the library is: PACKJIT_LIBRARY, or beside this package. Raises MissingEnvironment where it is not."""
    given = os.environ.get("PACKJIT_LIBRARY")
    if given:
        if not os.path.isfile(given):
            raise MissingEnvironment(f"PACKJIT_LIBRARY names '{given}', where no file is; set it to the path of {NAME} "
                                     "or unset it")
        return given
    beside = pathlib.Path(__file__).with_name(NAME)
    if not beside.is_file():
        raise MissingEnvironment(f"no {NAME} in {beside.parent}: install the package with `pip install .`, or set "
                                 "PACKJIT_LIBRARY to the library of a build")
    return str(beside)


def library() -> ctypes.CDLL:
    """The loaded library with its functions' types declared. Loading it calls no driver."""
    global _loaded
    if _loaded is None:
        with _lock:
            if _loaded is None:
                where = path()
                try:
                    found = ctypes.CDLL(where)
                    _c.declare(found)
                except (OSError, AttributeError) as error:
                    raise MissingEnvironment(f"{where} cannot be used as {NAME}: {error}; use the library of the same "
                                             "version as this package") from error
                _loaded = found
    return _loaded


class _Method(ctypes.Structure):  # PyMethodDef
    _fields_ = [("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int),
                ("doc", ctypes.c_char_p)]


_METH_FASTCALL = 0x80
_new_function = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.POINTER(_Method), ctypes.py_object, ctypes.c_void_p)(
    ("PyCFunction_NewEx", ctypes.pythonapi))


@functools.cache
def python_call():
    """packjit_python_call as a function of Python's own, which costs a fourth of what ctypes takes for a call."""
    address = ctypes.cast(library().packjit_python_call, ctypes.c_void_p).value
    method = _Method(b"packjit_python_call", address, _METH_FASTCALL)
    return _new_function(ctypes.byref(method), method, None)  # which keeps what it is made from as its __self__


def raise_last(status: int) -> None:
    """Raises what packjit_last_error() says of a call on this thread that gave `status`."""
    raise error_of(status, library().packjit_last_error().decode())


def check(status: int) -> None:
    """Raises unless the call that gave `status` succeeded. Must run on the thread of the call, right after it."""
    if status:
        raise_last(status)


def version() -> str:
    """Of the loaded library: "0.1.0"."""
    return library().packjit_version().decode()
