"""packjit_tensor from whatever holds memory: NumPy, PyTorch, __cuda_array_interface__, DLPack.

Nothing is copied: a tensor that cannot be described is refused.
"""

from __future__ import annotations

import ctypes
from typing import Any, Tuple

from packjit import _c
from packjit.errors import BadArgument, WrongType

# By the names that NumPy (with ml_dtypes for bfloat16) and PyTorch use.
DTYPES = {"float32": _c.FP32, "float16": _c.FP16, "bfloat16": _c.BF16, "int16": _c.INT16, "uint16": _c.UINT16,
          "int32": _c.INT32, "int64": _c.INT64, "complex64": _c.COMPLEX64}
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int16": 2, "uint16": 2, "int32": 4, "int64": 8,
          "complex64": 8}
_TYPESTRS = {"<f4": "float32", "<f2": "float16", "<i2": "int16", "<u2": "uint16", "<i4": "int32", "<i8": "int64",
             "<c8": "complex64"}
DLPACK_CODES = {(2, 32): "float32", (2, 16): "float16", (4, 16): "bfloat16", (0, 16): "int16", (1, 16): "uint16",
                 (0, 32): "int32", (0, 64): "int64", (5, 64): "complex64"}
_DLPACK_CPU, _DLPACK_CUDA, _DLPACK_CUDA_HOST, _DLPACK_CUDA_MANAGED = 1, 2, 3, 13


class DLTensor(ctypes.Structure):
    """DLTensor of DLPack's C header, at the beginning of DLManagedTensor."""

    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


def dense_strides(shape) -> Tuple[int, ...]:
    """Strides in elements of a tensor whose last dimension comes first in memory."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def tensor_of(array: Any, name: str, is_host: bool, is_written: bool = False) -> _c.packjit_tensor:
    """Describes `array`, which has to be in memory of the host where `is_host`, and of a GPU otherwise.

    The result keeps `array` alive. Raises BadArgument that names the tensor.
    """
    if is_written:
        for interface in ("__array_interface__", "__cuda_array_interface__"):
            if getattr(array, interface, {"data": (0, False)})["data"][1]:
                raise BadArgument(f"tensor {name}: it is read-only, and the call writes it")
    found_host, data, dtype, shape, stride = _describe(array, name)
    if found_host != is_host:
        raise BadArgument(f"tensor {name}: it is in memory of {'the host' if found_host else 'a GPU'}, and the device "
                          f"is {'host execution' if is_host else 'a GPU'}")
    if len(shape) < 1 or len(shape) > 4:
        raise BadArgument(f"tensor {name}: it has {len(shape)} dimensions, expected 1 to 4")
    tensor = _c.packjit_tensor(data=data, dtype=DTYPES[dtype], rank=len(shape))
    tensor.shape[:len(shape)] = shape
    tensor.stride[:len(shape)] = stride
    tensor.owner = array
    return tensor


def _describe(array: Any, name: str):
    """(in host memory?, address, dtype's name, shape, strides in elements)"""
    if hasattr(array, "data_ptr") and hasattr(array, "stride"):  # PyTorch, whose DLPack refuses what needs gradients
        dtype = _known(str(array.dtype).rpartition(".")[2], name)
        if array.is_conj() or array.is_neg():
            raise BadArgument(f"tensor {name}: it is a view whose numbers are not those in memory (PyTorch's conjugate or "
                              "negative bit); give its resolve_conj().resolve_neg()")
        return array.device.type == "cpu", array.data_ptr(), dtype, tuple(array.shape), array.stride()
    if hasattr(array, "__array_interface__"):
        interface = array.__array_interface__
        # NumPy has no bfloat16 of its own; ml_dtypes' has the name and an opaque type string.
        return (True, *_of_interface(interface, getattr(getattr(array, "dtype", None), "name", ""), name))
    if hasattr(array, "__cuda_array_interface__"):
        interface = array.__cuda_array_interface__
        return (False, *_of_interface(interface, getattr(getattr(array, "dtype", None), "name", ""), name))
    if hasattr(array, "__dlpack__"):
        return _of_dlpack(array, name)
    raise WrongType(f"tensor {name}: {type(array).__name__} is no tensor; give a NumPy array, a PyTorch tensor, or "
                      "anything with __cuda_array_interface__ or __dlpack__")


def _known(dtype: str, name: str) -> str:
    if dtype not in DTYPES:
        raise BadArgument(f"tensor {name}: its dtype is {dtype}, expected one of {', '.join(DTYPES)}")
    return dtype


def _of_interface(interface, dtype_name: str, name: str):
    typestr = interface["typestr"]
    if typestr.startswith(">"):  # whose dtype has the same name
        raise BadArgument(f"tensor {name}: its type is {typestr}, big-endian; expected the machine's order of bytes")
    dtype = _known(_TYPESTRS.get(typestr, dtype_name or typestr), name)
    shape = tuple(interface["shape"])
    strides = interface.get("strides")
    if strides is None:
        return interface["data"][0], dtype, shape, dense_strides(shape)
    size = _BYTES[dtype]
    for extent, stride in zip(shape, strides):
        if extent > 1 and stride % size:
            raise BadArgument(f"tensor {name}: a stride of {stride} bytes is no multiple of its element's {size}")
    return interface["data"][0], dtype, shape, tuple(stride // size for stride in strides)


def _of_dlpack(array: Any, name: str):
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    capsule = array.__dlpack__()  # destroyed with its name unchanged, it gives its reference back itself
    found = DLTensor.from_address(get(capsule, b"dltensor"))
    dtype = DLPACK_CODES.get((found.code, found.bits)) if found.lanes == 1 else None
    if dtype is None:
        raise BadArgument(f"tensor {name}: DLPack says type {found.code} of {found.bits} bits in {found.lanes} lanes, "
                          f"expected one of {', '.join(DTYPES)}")
    if found.device_type not in (_DLPACK_CPU, _DLPACK_CUDA, _DLPACK_CUDA_HOST, _DLPACK_CUDA_MANAGED):
        raise BadArgument(f"tensor {name}: DLPack says device type {found.device_type}, expected the CPU or CUDA")
    shape = tuple(found.shape[:found.ndim])
    strides = tuple(found.strides[:found.ndim]) if found.strides else dense_strides(shape)
    host = found.device_type in (_DLPACK_CPU, _DLPACK_CUDA_HOST)
    return host, (found.data or 0) + found.byte_offset, dtype, shape, strides
