"""packjit: packed Mamba operators. This package needs neither PyTorch nor NumPy; packjit.torch is the PyTorch layer."""

from packjit._library import version
from packjit.device import Device
from packjit.errors import (BadArgument, CheckFailed, DriverError, InternalError, MissingEnvironment,
                            NotPreparedInCapture, OutOfMemory, PackjitError, WrongType)
from packjit.operators import Conv1dPack, SsmPack
from packjit.sequence_map import SequenceMap

__all__ = ["BadArgument", "CheckFailed", "Conv1dPack", "Device", "DriverError", "InternalError", "MissingEnvironment",
           "NotPreparedInCapture", "OutOfMemory", "PackjitError", "SequenceMap", "SsmPack", "WrongType",
           "version"]
