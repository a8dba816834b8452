"""Where operators run: a GPU, or the CPU through host execution."""

from __future__ import annotations

import ctypes
import weakref
from typing import Optional

from packjit import _c
from packjit._library import check, library
from packjit.errors import Uncopyable, WrongType, choice


class Device(Uncopyable):
    """Opened on a GPU or for host execution. Any thread may use it.

    Maps and operators made with a device keep it alive, so that it is released last.
    """

    def __init__(self, kind: str = "auto", ordinal: int = 0):
        """`kind`: "auto" (the GPU `ordinal` where there is a GPU, otherwise host execution), "gpu" (its primary
        context, which PyTorch and CuPy use), "current" (whatever CUDA context is current on the thread that calls) or
        "host" (the CPU: for checks, needs a C++ compiler and is slow). Raises BadArgument, MissingEnvironment."""
        kinds = {"auto": _c.AUTO, "gpu": _c.GPU, "current": _c.CURRENT, "host": _c.HOST}
        options = _c.packjit_device_options(kind=choice("Device: kind", kind, kinds), ordinal=ordinal)
        c = library()
        handle = ctypes.c_void_p()
        check(c.packjit_device_open(ctypes.byref(options), ctypes.byref(handle)))
        self.handle: Optional[int] = handle.value
        info = _c.packjit_device_info()
        # Objects made with the device hold it, so at this point they are gone. Not at the process's end: threads of
        # other libraries may still be inside a call then.
        self._release = weakref.finalize(self, c.packjit_device_release, self.handle)
        self._release.atexit = False
        check(c.packjit_device_get_info(self.handle, ctypes.byref(info)))
        self.is_host = bool(info.is_host)
        self.multiprocessors = int(info.multiprocessors)
        self.memory_bytes = int(info.memory_bytes)
        self.arch = info.arch.decode()  # "sm_90", "host"
        self.name = info.name.decode(errors="replace")

    @classmethod
    def host(cls) -> Device:
        """The CPU."""
        return cls("host")

    @classmethod
    def gpu(cls, ordinal: int = 0) -> Device:
        """The primary context of a GPU."""
        return cls("gpu", ordinal)

    def __repr__(self) -> str:
        return f"packjit.Device({self.arch}, {self.name!r})"


def handle_of(device: Device) -> Optional[int]:
    """Raises WrongType for what is none."""
    if not isinstance(device, Device):
        raise WrongType(f"device is a {type(device).__name__}, expected a packjit.Device, as Device.host() "
                        "gives one")
    return device.handle
