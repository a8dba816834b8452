"""include/packjit/packjit.h in ctypes: enums, structs and prototypes under the header's own names, nothing else.

A test holds every name, number and member against the header.
"""

from ctypes import (POINTER, Structure, c_char, c_char_p, c_double, c_float, c_int32, c_int64, c_size_t, c_uint64,
                    c_void_p, sizeof)

# packjit_status
OK, BAD_ARGUMENT, ENVIRONMENT, CHECK_FAILED, INTERNAL, NOT_PREPARED_IN_CAPTURE, OUT_OF_MEMORY, DRIVER_ERROR = range(8)
# kinds of device
AUTO, GPU, CURRENT, HOST = range(4)
# dtypes
FP32, FP16, BF16, INT16, UINT16, INT32, INT64, COMPLEX64 = range(1, 9)
# forms of boundaries
POSITION_INDICES, SEQ_IDX, CU_SEQLENS, ROWS = range(1, 5)
# storage of a map
POSITIONS, POSITIONS16, BITS, OFFSETS = range(4)
# operators, switches, directions, layouts
CONV1D_PACK, SSM_PACK = 1, 2
DEFAULT, OFF, ON = range(3)
FORWARD, BACKWARD = 1, 2
TOKEN_MAJOR, CHANNEL_MAJOR, STRIDED = range(3)


class Sized(Structure):
    """A struct that begins with struct_size, which is set here. Members not given are 0: none, or the default. Raises
    BadArgument for a number that its member cannot hold, of which ctypes would take what is left, and for none."""

    def __init__(self, **members):
        super().__init__(struct_size=sizeof(type(self)))
        for name, value in members.items():
            try:
                setattr(self, name, value)
            except TypeError:
                from packjit.errors import whole  # which imports this module
                value = whole(name, value)
                setattr(self, name, value)
            if type(value) is int and getattr(self, name) != value:
                from packjit.errors import BadArgument
                raise BadArgument(f"{name} is {value}, beyond {8 * getattr(type(self), name).size} bits")


def _members(names, kind):
    return [(name, kind) for name in names.split()]


class packjit_device_options(Sized):
    _fields_ = [("struct_size", c_size_t), ("kind", c_int32), ("ordinal", c_int32)]


class packjit_device_info(Sized):
    _fields_ = [("struct_size", c_size_t), ("is_host", c_int32), ("multiprocessors", c_int32),
                ("memory_bytes", c_int64), ("arch", c_char * 16), ("name", c_char * 128)]


class packjit_tensor(Sized):
    _fields_ = [("struct_size", c_size_t), ("data", c_void_p), ("dtype", c_int32), ("rank", c_int32),
                ("shape", c_int64 * 4), ("stride", c_int64 * 4)]


class packjit_map_options(Sized):
    _fields_ = [("struct_size", c_size_t), ("form", c_int32), ("storage", c_int32),
                *_members("batch seqlen max_sequences max_seqlen", c_int64)]


class packjit_map_info(Sized):
    _fields_ = [("struct_size", c_size_t), *_members("batch seqlen n_sequences max_sequences max_seqlen", c_int64)]


class packjit_operator_options(Sized):
    _fields_ = [("struct_size", c_size_t),
                *_members("op dtype conv_width bias silu map_storage d_state softplus D z delta_bias checkpoints "
                          "initial_states final_states constant_B constant_C complex_A fp32_weights", c_int32)]


class packjit_shape(Sized):
    _fields_ = [("struct_size", c_size_t),
                *_members("batch seqlen dim groups max_sequences max_seqlen", c_int64),
                *_members("layout caller_workspace", c_int32)]


class packjit_workspace(Sized):
    _fields_ = [("struct_size", c_size_t), ("data", c_void_p), ("bytes", c_size_t)]


def _tensors(names):
    return [("struct_size", c_size_t), *_members(names, POINTER(packjit_tensor))]


class packjit_conv1d_forward_tensors(Sized):
    _fields_ = _tensors("x weight bias initial_states out final_states")


class packjit_conv1d_backward_tensors(Sized):
    _fields_ = _tensors("x weight bias initial_states dout dfinal_states dx dweight dbias dinitial_states")


class packjit_ssm_forward_tensors(Sized):
    _fields_ = _tensors("u delta A B C D z delta_bias initial_states out final_states checkpoints")


class packjit_ssm_backward_tensors(Sized):
    _fields_ = _tensors("u delta A B C D z delta_bias initial_states dout dfinal_states checkpoints "
                        "du ddelta dA dB dC dD dz ddelta_bias dinitial_states")


# Handles are void*: a number in Python. So are pointers to structs on the way of a call, which byref() or an address
# fits, since converting typed pointers costs more than the call.
_HANDLE, _STRUCT = c_void_p, c_void_p
PROTOTYPES = {
    "packjit_status_name": (c_char_p, [c_int32]),
    "packjit_last_error": (c_char_p, []),
    "packjit_version": (c_char_p, []),
    "packjit_device_open": (c_int32, [_STRUCT, POINTER(_HANDLE)]),
    "packjit_device_release": (None, [_HANDLE]),
    "packjit_device_get_info": (c_int32, [_HANDLE, _STRUCT]),
    "packjit_map_from_host": (c_int32, [_HANDLE, c_void_p, _STRUCT, _STRUCT, POINTER(_HANDLE)]),
    "packjit_map_create": (c_int32, [_HANDLE, c_void_p, _STRUCT, c_int32, POINTER(_HANDLE)]),
    "packjit_map_build": (c_int32, [_HANDLE, c_void_p, _STRUCT]),
    "packjit_map_check": (c_int32, [_HANDLE, c_void_p]),
    "packjit_map_get_info": (c_int32, [_HANDLE, _STRUCT]),
    "packjit_map_release": (None, [_HANDLE]),
    "packjit_operator_create": (c_int32, [_HANDLE, _STRUCT, POINTER(_HANDLE)]),
    "packjit_operator_release": (None, [_HANDLE]),
    "packjit_operator_prepare": (c_int32, [_HANDLE, c_void_p, c_int32, _STRUCT]),
    "packjit_operator_prepare_start": (c_int32, [_HANDLE, c_void_p, c_int32, _STRUCT, POINTER(_HANDLE)]),
    "packjit_task_ready": (c_int32, [_HANDLE]),
    "packjit_task_wait": (c_int32, [_HANDLE]),
    "packjit_task_release": (None, [_HANDLE]),
    "packjit_operator_workspace_bytes": (c_int32, [_HANDLE, c_int32, _STRUCT, POINTER(c_size_t)]),
    "packjit_checkpoint_interval": (c_int32, [c_int32]),
    "packjit_operator_describe": (c_int32, [_HANDLE, c_int32, _STRUCT, c_char_p, _STRUCT]),
    "packjit_conv1d_forward": (c_int32, [_HANDLE, c_void_p, _HANDLE, _STRUCT, _STRUCT]),
    "packjit_conv1d_backward": (c_int32, [_HANDLE, c_void_p, _HANDLE, _STRUCT, _STRUCT]),
    "packjit_ssm_forward": (c_int32, [_HANDLE, c_void_p, _HANDLE, _STRUCT, _STRUCT]),
    "packjit_ssm_backward": (c_int32, [_HANDLE, c_void_p, _HANDLE, _STRUCT, _STRUCT]),
}

# --- calls from Python ---

# Called by Python itself, not through ctypes: _library.python_call() makes a function of it.
PROTOTYPES["packjit_python_call"] = (c_void_p, [c_void_p, c_void_p, c_int64])

# --- packing ---

LOSS_PER_TOKEN, LOSS_PER_DOCUMENT = range(2)
LAST_TOKEN_IS_DROPPED, LAST_TOKEN_COUNTS = range(2)
DIVISION_BALANCED, DIVISION_ROUND_ROBIN = range(2)


class packjit_packer_options(Sized):
    _fields_ = [("struct_size", c_size_t), ("method", c_char_p), *_members("pack_length rows ranks rank", c_int64),
                ("seed", c_uint64), *_members("cut cut_slack min_piece window open_packs", c_int64),
                *_members("loss_unit last_token division", c_int32)]


class packjit_documents(Sized):
    _fields_ = [("struct_size", c_size_t), ("count", c_int64),
                *_members("lengths breaks break_offsets", POINTER(c_int64))]


class packjit_piece(Structure):
    _fields_ = _members("document offset length row start more from_step from_slot", c_int64)


class packjit_step(Sized):
    _fields_ = [("struct_size", c_size_t),
                *_members("epoch step steps rows pack_length tokens max_seqlen n_pieces n_cu_seqlens", c_int64),
                ("pieces", POINTER(packjit_piece)), *_members("position_indices seq_idx", POINTER(c_int32)),
                *_members("cu_seqlens document_ids document_offsets", POINTER(c_int64)),
                ("loss_weights", POINTER(c_float))]


class packjit_packer_position(Sized):
    _fields_ = [("struct_size", c_size_t), *_members("epoch step", c_int64), ("fingerprint", c_uint64)]


class packjit_packer_info(Sized):
    _fields_ = [("struct_size", c_size_t), *_members("max_sequences max_seqlen steps", c_int64)]


class packjit_packer_statistics(Sized):
    _fields_ = [("struct_size", c_size_t), *_members("documents documents_cut pieces tokens slots", c_int64),
                *_members("fill_rate mean_order_drift mean_handover_distance mean_token_spread mean_longest_spread",
                          c_double),
                *_members("largest_order_drift largest_handover_distance", c_int64)]


PROTOTYPES.update({
    "packjit_packer_create": (c_int32, [_STRUCT, _STRUCT, POINTER(_HANDLE)]),
    "packjit_packer_release": (None, [_HANDLE]),
    "packjit_packer_next": (c_int32, [_HANDLE, _STRUCT]),
    "packjit_packer_get_position": (c_int32, [_HANDLE, _STRUCT]),
    "packjit_packer_resume": (c_int32, [_HANDLE, _STRUCT]),
    "packjit_packer_get_info": (c_int32, [_HANDLE, _STRUCT]),
    "packjit_packer_get_statistics": (c_int32, [_HANDLE, _STRUCT]),
})


def declare(library):
    """Gives the functions of a loaded library their types; AttributeError where it lacks one."""
    for name, (result, arguments) in PROTOTYPES.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
