"""What packjit raises: one class for each packjit_status, all of them PackjitError."""

from __future__ import annotations

import operator
from collections.abc import Mapping

from packjit import _c


class PackjitError(RuntimeError):
    """A call of packjit failed; the message says what was attempted, what was found and what to do.

    `status` is the packjit_status. After a failure every object is as before the call; outputs are unspecified.
    """

    status: int = _c.INTERNAL


class BadArgument(PackjitError, ValueError):
    """A wrong dtype, shape, stride, option or boundary."""

    status = _c.BAD_ARGUMENT


class WrongType(BadArgument, TypeError):
    """An argument of another type than is taken."""


class MissingEnvironment(PackjitError):
    """The machine lacks something: driver, GPU, NVRTC, C++ compiler, or libpackjit itself."""

    status = _c.ENVIRONMENT


class CheckFailed(PackjitError):
    """The self-check of a kernel found a wrong result; the kernel is not used."""

    status = _c.CHECK_FAILED


class InternalError(PackjitError):
    """A fault of packjit: please report it with the message."""

    status = _c.INTERNAL


class NotPreparedInCapture(PackjitError):
    """Needs what a stream capture cannot hold; the capture is still valid. Run the same call once before it."""

    status = _c.NOT_PREPARED_IN_CAPTURE


class OutOfMemory(PackjitError, MemoryError):
    """Of the GPU or of the host."""

    status = _c.OUT_OF_MEMORY


class DriverError(PackjitError):
    """The CUDA driver refused a call; an earlier kernel, of anybody's, may have failed."""

    status = _c.DRIVER_ERROR


class Uncopyable:
    """Owns a handle of the library, an address of this process, which a copy would neither own nor keep alive."""

    def __reduce_ex__(self, protocol):
        raise TypeError(f"a packjit {type(self).__name__} cannot be copied or pickled; make another one, in the "
                        "process that uses it")


def choice(name: str, given: str, values: Mapping[str, int]) -> int:
    """values[given]. Raises BadArgument that has `name` where it is none of them."""
    if not isinstance(given, str) or given not in values:
        raise BadArgument(f"{name} is {given!r}, expected one of {', '.join(values)}")
    return values[given]


def whole(name: str, given: object) -> int:
    """A number of any type that is an integer, NumPy's and PyTorch's among them. Raises WrongType that has `name`."""
    try:
        return operator.index(given)
    except TypeError:
        raise WrongType(f"{name} is {given!r}, expected an integer") from None


_BY_STATUS = {kind.status: kind for kind in (BadArgument, MissingEnvironment, CheckFailed, InternalError,
                                             NotPreparedInCapture, OutOfMemory, DriverError)}


def error_of(status: int, message: str) -> PackjitError:
    """The exception for a packjit_status other than OK."""
    return _BY_STATUS.get(status, InternalError)(message)
