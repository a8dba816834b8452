"""DLPackExchangeAPI for PyTorch: how the library reads a call's tensors and takes scratch memory by itself.

PyTorch from 2.10 on has a table of C functions for that (DLPack's exchange API). Others get the same table in Python,
with which a call costs about four times as much.
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int, c_int32, c_uint32, c_uint64, c_void_p, py_object
from typing import Dict, List, Tuple

import torch

from packjit._tensors import DLPACK_CODES, DLTensor

_CPU, _CUDA = 1, 2
_VERSION = 1
_DTYPES = {getattr(torch, name): numbers for numbers, name in DLPACK_CODES.items() if hasattr(torch, name)}
_UNKNOWN = (255, 0)  # to be refused by its dtype
_DESCRIPTION_BYTES = ctypes.sizeof(DLTensor)


class _Managed(Structure):
    pass


_DELETER = CFUNCTYPE(None, POINTER(_Managed))
_Managed._fields_ = [("major", c_uint32), ("minor", c_uint32), ("context", c_void_p), ("deleter", _DELETER),
                     ("flags", c_uint64), ("tensor", DLTensor)]
_SET_ERROR = CFUNCTYPE(None, c_void_p, c_char_p, c_char_p)
_ALLOCATE = CFUNCTYPE(c_int, POINTER(DLTensor), POINTER(POINTER(_Managed)), c_void_p, _SET_ERROR)
_DESCRIBE = CFUNCTYPE(c_int, py_object, c_void_p)
_STREAM = CFUNCTYPE(c_int, c_int32, c_int32, POINTER(c_void_p))


class _Table(Structure):
    _fields_ = [("major", c_uint32), ("minor", c_uint32), ("older", c_void_p), ("allocate", _ALLOCATE),
                ("take", c_void_p), ("give", c_void_p), ("describe", _DESCRIBE), ("stream", _STREAM)]


@functools.lru_cache(maxsize=4096)
def _description(shape: Tuple[int, ...], strides: Tuple[int, ...], dtype: torch.dtype, device: torch.device):
    """All but the address. Kept: what reads a description has copied it before another one is made."""
    code, bits = _DTYPES.get(dtype, _UNKNOWN)
    numbers = ctypes.c_int64 * len(shape)
    kind, index = (_CPU, 0) if device.type == "cpu" else (_CUDA, device.index or 0)
    return DLTensor(device_type=kind, device_id=index, ndim=len(shape), code=code, bits=bits, lanes=1,
                    shape=numbers(*shape), strides=numbers(*strides))


INTERRUPTIONS: List[BaseException] = []  # such as KeyboardInterrupt, while a callback ran: for who called the library


def _failed(error: BaseException) -> int:
    if not isinstance(error, Exception):
        INTERRUPTIONS.append(error)
    return -1


@_DESCRIBE
def _describe(tensor, to):
    try:
        description = _description(tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        ctypes.memmove(to, ctypes.addressof(description), _DESCRIPTION_BYTES)
        c_void_p.from_address(to).value = tensor.data_ptr()  # its first member
        return 0
    except BaseException as error:  # nothing may come out of a callback; the caller says what the tensors are
        return _failed(error)


_lent: Dict[int, Tuple[_Managed, torch.Tensor]] = {}  # scratch memory in use, by address


@_DELETER
def _give_back(managed):
    _lent.pop(ctypes.addressof(managed.contents), None)


@_ALLOCATE
def _allocate(like, made, context, set_error):
    try:
        like = like.contents
        device = torch.device("cpu") if like.device_type == _CPU else torch.device("cuda", like.device_id)
        memory = torch.empty(like.shape[0], dtype=torch.uint8, device=device)
        managed = _Managed(major=_VERSION, deleter=_give_back)
        managed.tensor.data = memory.data_ptr()
        _lent[ctypes.addressof(managed)] = managed, memory
        made[0] = ctypes.pointer(managed)
        return 0
    except BaseException as error:
        set_error(context, b"MemoryError", str(error).encode())
        return _failed(error)


@_STREAM
def _stream(device_type, device_id, stream):
    try:
        stream[0] = torch.cuda.current_stream(device_id).cuda_stream if device_type == _CUDA else None
        return 0
    except BaseException as error:
        return _failed(error)


TABLE_IN_PYTHON = _Table(major=_VERSION, allocate=_allocate, describe=_describe, stream=_stream)


def _table_of_pytorch() -> int:
    """The address of PyTorch's own table, 0 where it has none that fits."""
    capsule, name = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None), b"dlpack_exchange_api"
    is_valid, pointer_of = ctypes.pythonapi.PyCapsule_IsValid, ctypes.pythonapi.PyCapsule_GetPointer
    is_valid.argtypes = pointer_of.argtypes = [py_object, c_char_p]
    pointer_of.restype = c_void_p
    if not is_valid(capsule, name):
        return 0
    address = pointer_of(capsule, name)
    table = _Table.from_address(address)
    return address if table.major == _VERSION and table.describe else 0


TABLE = _table_of_pytorch() or ctypes.addressof(TABLE_IN_PYTHON)  # its address
