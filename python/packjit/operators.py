"""conv1d_pack and ssm_pack without PyTorch: NumPy arrays on host execution, DLPack or __cuda_array_interface__ on a
GPU."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any, Dict

from packjit import _c
from packjit._library import check, library
from packjit._tensors import DTYPES, tensor_of
from packjit.device import Device, handle_of
from packjit.errors import BadArgument, Uncopyable, WrongType, choice, whole
from packjit.sequence_map import STORAGES, SequenceMap

_DTYPES = {name: DTYPES[name] for name in ("float32", "float16", "bfloat16")}
_NUMPY_DTYPES = {_c.FP32: "float32", _c.FP16: "float16", _c.COMPLEX64: "complex64"}


class _Operator(Uncopyable):
    """A packjit_operator with its options. Any thread may use it, several at once, each with a stream of its own."""

    _forward_tensors: type
    _backward_tensors: type
    _forward_name: str
    _backward_name: str

    def __init__(self, device: Device, options: _c.packjit_operator_options, has: Dict[str, bool]):
        handle = ctypes.c_void_p()
        check(library().packjit_operator_create(handle_of(device), ctypes.byref(options), ctypes.byref(handle)))
        self.device, self.handle, self._has = device, handle.value, has
        self._release = weakref.finalize(self, _release_operator, handle.value, device)
        self._release.atexit = False

    def shape(self, seq_map: SequenceMap, dim: int, groups: int = 1, layout: int = _c.TOKEN_MAJOR) -> _c.packjit_shape:
        """What calls with this map look like; for prepare(), workspace_bytes() and describe()."""
        return _c.packjit_shape(batch=seq_map.batch, seqlen=seq_map.seqlen, dim=dim, groups=groups,
                                max_sequences=max(seq_map.n_sequences, 1), max_seqlen=max(seq_map.max_seqlen, 1),
                                layout=layout)

    def prepare(self, shape: _c.packjit_shape, forward: bool = True, backward: bool = True, stream: int = 0) -> None:
        """Generates, compiles and loads what such calls need, so that they can be captured and cost little."""
        directions = (_c.FORWARD if forward else 0) + (_c.BACKWARD if backward else 0)
        check(library().packjit_operator_prepare(self.handle, stream, directions, ctypes.byref(shape)))

    def workspace_bytes(self, direction: int, shape: _c.packjit_shape) -> int:
        """The scratch memory of such calls, at most. `direction`: 1 forward, 2 backward."""
        found = ctypes.c_size_t()
        check(library().packjit_operator_workspace_bytes(self.handle, direction, ctypes.byref(shape),
                                                         ctypes.byref(found)))
        return found.value

    def describe(self, direction: int, shape: _c.packjit_shape, name: str) -> _c.packjit_tensor:
        """Shape, strides and dtype that a tensor of the operator has in such calls; its data is None."""
        tensor = _c.packjit_tensor()
        check(library().packjit_operator_describe(self.handle, direction, ctypes.byref(shape), name.encode(),
                                                  ctypes.byref(tensor)))
        return tensor

    def _run(self, direction: int, seq_map: SequenceMap, given: Dict[str, Any], outputs: Dict[str, str],
             first: str, stream: int) -> Dict[str, Any]:
        """Runs one direction. `outputs`: those to write, each with the option it depends on ("": always). What is not
        given of them is made by NumPy on host execution."""
        if not isinstance(seq_map, SequenceMap):
            raise WrongType(f"{type(self).__name__}: the map is a {type(seq_map).__name__}, expected a "
                              "packjit.SequenceMap, made once a batch from its boundaries")
        forward = direction == _c.FORWARD
        host = self.device.is_host
        wanted = {name: given.get(name) for name, option in outputs.items() if not option or self._has[option]}
        missing = ", ".join(name for name, array in wanted.items() if array is None)
        if missing and not host:
            raise BadArgument(f"{type(self).__name__}: memory for {missing} is missing: on a GPU the caller gives what "
                              "is written, as arguments of these names")
        tensors = {name: tensor_of(array, name, host) for name, array in given.items()
                   if array is not None and name not in wanted}
        if missing:
            shape = self._shape_of_call(seq_map, tensors, first)
            wanted = {name: self._numpy(direction, shape, name) if array is None else array
                      for name, array in wanted.items()}
        tensors.update({name: tensor_of(array, name, host, True) for name, array in wanted.items()})
        struct = (self._forward_tensors if forward else self._backward_tensors)(
            **{name: ctypes.pointer(tensor) for name, tensor in tensors.items()})
        function = getattr(library(), self._forward_name if forward else self._backward_name)
        check(function(self.handle, stream, seq_map.handle, ctypes.byref(struct), None))
        return wanted

    def _shape_of_call(self, seq_map: SequenceMap, tensors: Dict[str, _c.packjit_tensor],
                       first: str) -> _c.packjit_shape:
        if first not in tensors:
            raise BadArgument(f"{type(self).__name__}: tensor {first} is missing")
        size = tuple(tensors[first].shape[:tensors[first].rank])
        if len(size) != 3:
            raise BadArgument(f"tensor {first}: its shape is {size}, expected (batch, seqlen, dim)")
        of_tokens = [tensors[name] for name in ("B", "C") if name in tensors and tensors[name].rank == 4]
        groups = of_tokens[0].shape[2] if of_tokens else 1
        return self.shape(seq_map, size[2], groups)

    def _numpy(self, direction: int, shape: _c.packjit_shape, name: str):
        import numpy
        tensor = self.describe(direction, shape, name)
        size = tuple(tensor.shape[:tensor.rank])
        if tensor.dtype == _c.BF16:
            import ml_dtypes  # has NumPy's bfloat16
            return numpy.zeros(size, ml_dtypes.bfloat16)
        return numpy.zeros(size, _NUMPY_DTYPES[tensor.dtype])


class Conv1dPack(_Operator):
    """y[t] = act(bias + sum over k of weight[W-1-k] * x[t-k]), where no tap leaves the token's sequence.

    x, out and their gradients are (batch, seqlen, dim); weight (dim, conv_width) and bias (dim) have their dtype, or
    are fp32 with fp32_weights; states (n_sequences, dim, conv_width - 1) have it too, the last inputs of each sequence,
    oldest first; dweight and dbias are fp32. Any strides. Outputs are written completely; tokens of padding give 0.
    """

    _forward_tensors = _c.packjit_conv1d_forward_tensors
    _backward_tensors = _c.packjit_conv1d_backward_tensors
    _forward_name, _backward_name = "packjit_conv1d_forward", "packjit_conv1d_backward"

    def __init__(self, device: Device, *, dtype: str = "bfloat16", conv_width: int = 4, bias: bool = True,
                 silu: bool = True, initial_states: bool = False, final_states: bool = False,
                 map_storage: str = "positions", fp32_weights: bool = False):
        """`dtype`: float32, float16 or bfloat16; `conv_width`: 1 to 16. Raises BadArgument."""
        has = {"bias": bias, "initial_states": initial_states, "final_states": final_states,
               "fp32_weights": fp32_weights}
        super().__init__(device, _c.packjit_operator_options(
            op=_c.CONV1D_PACK, dtype=choice("dtype", dtype, _DTYPES), conv_width=_positive("conv_width", conv_width),
            silu=_switch(silu), map_storage=choice("map_storage", map_storage, STORAGES),
            **{name: _switch(value) for name, value in has.items()}), has)

    def forward(self, seq_map: SequenceMap, *, x: Any, weight: Any, bias: Any = None, initial_states: Any = None,
                out: Any = None, final_states: Any = None, stream: int = 0) -> Dict[str, Any]:
        """What was written, by name: out, and final_states where the operator has them. They are made by NumPy on host
        execution, and given by the caller on a GPU. Raises PackjitError."""
        return self._run(_c.FORWARD, seq_map,
                         {"x": x, "weight": weight, "bias": bias, "initial_states": initial_states, "out": out,
                          "final_states": final_states}, {"out": "", "final_states": "final_states"}, "x", stream)

    def backward(self, seq_map: SequenceMap, *, x: Any, weight: Any, dout: Any, bias: Any = None,
                 initial_states: Any = None, dfinal_states: Any = None, dx: Any = None, dweight: Any = None,
                 dbias: Any = None, dinitial_states: Any = None, stream: int = 0) -> Dict[str, Any]:
        """The gradients, by name: dx, dweight, dbias, dinitial_states, as far as the operator has them."""
        return self._run(_c.BACKWARD, seq_map,
                         {"x": x, "weight": weight, "bias": bias, "initial_states": initial_states, "dout": dout,
                          "dfinal_states": dfinal_states, "dx": dx, "dweight": dweight, "dbias": dbias,
                          "dinitial_states": dinitial_states},
                         {"dx": "", "dweight": "", "dbias": "bias", "dinitial_states": "initial_states"}, "x", stream)


class SsmPack(_Operator):
    """h[t] = exp(dt*A) * h[t-1] + dt*B[t]*u[t], out[t] = (C[t]*h[t] + D*u[t]) * silu(z[t]),
    dt = softplus(delta + delta_bias); h begins anew in every sequence.

    u, delta, z, out are (batch, seqlen, dim); B and C (batch, seqlen, groups, d_state); A (dim, d_state), D and
    delta_bias (dim) fp32; states (n_sequences, dim, d_state) fp32. Gradients have the shape of what they are the
    gradient of, and its dtype. Any strides. Outputs are written completely; tokens of padding give 0.

    With constant_B or constant_C, B or C is (dim, d_state) fp32, the same for all tokens. With complex_A, A, states and
    constant B and C are complex64; B and C of tokens stay in the dtype, (batch, seqlen, groups, 2 * d_state), real and
    imaginary parts in turn; C[t]*h[t] counts as 2 * Re(C[t]*h[t]). Gradients are dL/d(re) + i * dL/d(im). These are
    written for correctness, not for speed, and go without checkpoints.
    """

    _forward_tensors = _c.packjit_ssm_forward_tensors
    _backward_tensors = _c.packjit_ssm_backward_tensors
    _forward_name, _backward_name = "packjit_ssm_forward", "packjit_ssm_backward"

    def __init__(self, device: Device, *, dtype: str = "bfloat16", d_state: int = 16, softplus: bool = True,
                 D: bool = True, z: bool = True, delta_bias: bool = True, checkpoints: bool = False,
                 initial_states: bool = False, final_states: bool = False, constant_B: bool = False,
                 constant_C: bool = False, complex_A: bool = False):
        """`dtype`: float32, float16 or bfloat16; `d_state`: 1 to 512; `checkpoints`: the forward stores states for the
        backward, which then need not compute them again. Raises BadArgument."""
        has = {"D": D, "z": z, "delta_bias": delta_bias, "checkpoints": checkpoints, "initial_states": initial_states,
               "final_states": final_states, "constant_B": constant_B, "constant_C": constant_C,
               "complex_A": complex_A}
        super().__init__(device, _c.packjit_operator_options(
            op=_c.SSM_PACK, dtype=choice("dtype", dtype, _DTYPES), d_state=_positive("d_state", d_state),
            softplus=_switch(softplus), **{name: _switch(value) for name, value in has.items()}), has)

    def forward(self, seq_map: SequenceMap, *, u: Any, delta: Any, A: Any, B: Any, C: Any, D: Any = None, z: Any = None,
                delta_bias: Any = None, initial_states: Any = None, out: Any = None, final_states: Any = None,
                checkpoints: Any = None, stream: int = 0) -> Dict[str, Any]:
        """What was written, by name: out, and final_states and checkpoints where the operator has them. They are made
        by NumPy on host execution, and given by the caller on a GPU. Raises PackjitError."""
        return self._run(_c.FORWARD, seq_map,
                         {"u": u, "delta": delta, "A": A, "B": B, "C": C, "D": D, "z": z, "delta_bias": delta_bias,
                          "initial_states": initial_states, "out": out, "final_states": final_states,
                          "checkpoints": checkpoints},
                         {"out": "", "final_states": "final_states", "checkpoints": "checkpoints"}, "u", stream)

    def backward(self, seq_map: SequenceMap, *, u: Any, delta: Any, A: Any, B: Any, C: Any, dout: Any, D: Any = None,
                 z: Any = None, delta_bias: Any = None, initial_states: Any = None, dfinal_states: Any = None,
                 checkpoints: Any = None, stream: int = 0, **gradients: Any) -> Dict[str, Any]:
        """The gradients, by name: du, ddelta, dA, dB, dC, dD, dz, ddelta_bias, dinitial_states, as far as the operator
        has them. `gradients`: memory for them, by these names."""
        outputs = {"du": "", "ddelta": "", "dA": "", "dB": "", "dC": "", "dD": "D", "dz": "z",
                   "ddelta_bias": "delta_bias", "dinitial_states": "initial_states"}
        unknown = set(gradients) - set(outputs)
        if unknown:
            raise TypeError(f"SsmPack.backward: unexpected argument {', '.join(sorted(unknown))}")
        return self._run(_c.BACKWARD, seq_map,
                         {"u": u, "delta": delta, "A": A, "B": B, "C": C, "D": D, "z": z, "delta_bias": delta_bias,
                          "initial_states": initial_states, "dout": dout, "dfinal_states": dfinal_states,
                          "checkpoints": checkpoints, **gradients}, outputs, "u", stream)


def _release_operator(handle: int, device: Device) -> None:
    library().packjit_operator_release(handle)


def _switch(value: bool) -> int:
    return _c.ON if value else _c.OFF


def _positive(name: str, given: int) -> int:
    """In the C struct 0 stands for the default."""
    value = whole(name, given)
    if value < 1:
        raise BadArgument(f"{name} is {value}, expected 1 or more")
    return value
