"""The layer without PyTorch: NumPy arrays on host execution, values worked out by hand."""

import ctypes
import gc
import math
import subprocess
import sys

import numpy as np
import pytest

import packjit
from packjit import _c


@pytest.fixture(scope="module")
def host():
    return packjit.Device.host()


POSITIONS = np.array([[0, 1, 2, 3, 4, 0, 1, 2]], dtype=np.int32)
X = np.array([1, 2, 3, 4, 5, 10, 20, 30], dtype=np.float32).reshape(1, 8, 1)
SUMS = [1, 3, 6, 10, 14, 10, 30, 60]  # of up to four tokens of the own sequence


def sums_of(host, seq_map, x=X, weight=None):
    conv = packjit.Conv1dPack(host, dtype="float32", bias=False, silu=False)
    weight = np.ones((1, 4), dtype=np.float32) if weight is None else weight
    return conv.forward(seq_map, x=x, weight=weight)["out"].ravel().tolist()


def test_device(host):
    assert host.is_host and host.arch == "host" and "host" in repr(host)
    with pytest.raises(ValueError, match="expected one of auto, gpu, current, host"):
        packjit.Device("tpu")
    assert packjit.version() == "0.1.0"


@pytest.mark.parametrize("dtype", [np.int16, np.uint16, np.int32, np.int64])
def test_convolution_and_dtypes_of_boundaries(host, dtype):
    seq_map = packjit.SequenceMap.from_position_indices(host, POSITIONS.astype(dtype))
    assert (seq_map.batch, seq_map.seqlen, seq_map.n_sequences, seq_map.max_seqlen) == (1, 8, 2, 5)
    assert sums_of(host, seq_map) == SUMS


def test_forms_of_boundaries(host):
    for seq_map in (packjit.SequenceMap.from_seq_idx(host, np.array([[7] * 5 + [9] * 3])),
                    packjit.SequenceMap.from_cu_seqlens(host, np.array([0, 5, 8]), 1, 8)):
        assert sums_of(host, seq_map) == SUMS
    assert sums_of(host, packjit.SequenceMap.rows(host, 1, 8)) == [1, 3, 6, 10, 14, 22, 39, 65]


def test_map_that_the_device_builds(host):
    seq_map = packjit.SequenceMap.on_device(host, "position_indices", "int32", 1, 8, max_sequences=3, max_seqlen=8)
    seq_map.build(POSITIONS)
    seq_map.check()
    assert seq_map.n_sequences == 3 and sums_of(host, seq_map) == SUMS
    seq_map.build(np.array([[0, 1, 5, 0, 1, 2, 3, 4]], dtype=np.int32))
    with pytest.raises(packjit.BadArgument, match="token 2 has position 5"):
        seq_map.check()


def test_gradients_and_states_of_the_convolution(host):
    seq_map = packjit.SequenceMap.from_position_indices(host, POSITIONS)
    conv = packjit.Conv1dPack(host, dtype="float32", silu=False, initial_states=True, final_states=True)
    weight, bias = np.array([[1, 10, 100, 1000]], np.float32), np.array([0.5], np.float32)
    initial = np.array([[[7, 8, 9]], [[0, 0, 1]]], dtype=np.float32)
    given = {"x": X, "weight": weight, "bias": bias, "initial_states": initial}
    done = conv.forward(seq_map, **given)
    # First token: 1000*1 + 100*9 + 10*8 + 7 + 0.5; first of the second sequence: 1000*10 + 100*1 + 0.5.
    assert done["out"][0, 0, 0] == 1987.5 and done["out"][0, 5, 0] == 10100.5
    assert done["final_states"].tolist() == [[[3, 4, 5]], [[10, 20, 30]]]
    ones = np.ones_like(X)
    grads = conv.backward(seq_map, **given, dout=ones, dfinal_states=np.zeros_like(initial))
    assert grads["dx"].ravel().tolist() == [1111, 1111, 1110, 1100, 1000, 1110, 1100, 1000]
    assert grads["dbias"].tolist() == [8]
    # Column 3 meets every token (75), column 2 the one before it: 9+1+2+3+4 and 1+10+20.
    assert grads["dweight"].tolist() == [[7 + 8 + 9 + 1 + 2 + 0 + 0 + 1, 8 + 9 + 1 + 2 + 3 + 0 + 1 + 10, 19 + 31, 75]]
    assert grads["dinitial_states"].tolist() == [[[1, 11, 111]], [[1, 11, 111]]]


def test_fp32_weights_beside_half_activations(host):
    seq_map = packjit.SequenceMap.from_cu_seqlens(host, np.array([0, 2]), 1, 2)
    conv = packjit.Conv1dPack(host, dtype="float16", conv_width=2, silu=False, fp32_weights=True)
    given = {"x": np.full((1, 2, 1), 2048, np.float16), "bias": np.array([2.0 ** -12], np.float32),
             "weight": np.array([[-1, 1 + 2.0 ** -12]], np.float32)}
    # Of weights rounded to fp16 the second token would keep nothing.
    assert conv.forward(seq_map, **given)["out"].ravel().tolist() == [2048, np.float16(0.5 + 2.0 ** -12)]
    gradients = conv.backward(seq_map, **given, dout=np.ones((1, 2, 1), np.float16))
    assert gradients["dx"].dtype == np.float16 and gradients["dx"].ravel().tolist() == [0.000244140625, 1]
    assert gradients["dweight"].dtype == np.float32 and gradients["dweight"].tolist() == [[2048, 4096]]
    assert gradients["dbias"].tolist() == [2]
    with pytest.raises(packjit.BadArgument, match="tensor weight is fp16, expected fp32: with fp32_weights = on"):
        conv.forward(seq_map, **{**given, "weight": given["weight"].astype(np.float16)})
    plain = packjit.Conv1dPack(host, dtype="float16", conv_width=2, silu=False)
    with pytest.raises(packjit.BadArgument, match="tensor weight is fp32, expected fp16: with fp32_weights = on"):
        plain.forward(seq_map, **given)


def test_scan(host):
    """With A = 0 states are sums: h[t] = h[t-1] + dt*B*u; exp(A*dt) = 1/2 halves them."""
    seq_map = packjit.SequenceMap.from_position_indices(host, POSITIONS)
    scan = packjit.SsmPack(host, dtype="float32", d_state=1, softplus=False, D=False, z=False, delta_bias=False,
                           final_states=True)
    ones, bc = np.ones_like(X), np.ones((1, 8, 1, 1), dtype=np.float32)
    for A, expected in ((0.0, [1, 3, 6, 10, 15, 10, 30, 60]),
                        (-math.log(2), [1, 2.5, 4.25, 6.125, 8.0625, 10, 25, 42.5])):
        done = scan.forward(seq_map, u=X, delta=ones, A=np.full((1, 1), A, np.float32), B=bc, C=bc)
        assert done["out"].ravel().tolist() == pytest.approx(expected, rel=1e-6)
        assert done["final_states"].ravel().tolist() == pytest.approx([expected[4], expected[7]], rel=1e-6)
    grads = scan.backward(seq_map, u=X, delta=ones, A=np.zeros((1, 1), np.float32), B=bc, C=bc, dout=ones,
                          dfinal_states=np.zeros((2, 1, 1), np.float32))
    # A token is in the sum of every token from it on.
    assert grads["du"].ravel().tolist() == [5, 4, 3, 2, 1, 3, 2, 1]
    assert set(grads) == {"du", "ddelta", "dA", "dB", "dC"}


def test_scan_with_complex_a_and_constant_b(host):
    seq_map = packjit.SequenceMap.from_cu_seqlens(host, np.array([0, 2, 4]), 1, 4)
    scan = packjit.SsmPack(host, dtype="float32", d_state=1, softplus=False, D=False, z=False, delta_bias=False,
                           final_states=True, constant_B=True, complex_A=True)
    given = {"u": np.arange(1, 5, dtype="f4").reshape(1, 4, 1), "delta": np.ones((1, 4, 1), "f4"),
             "A": np.zeros((1, 1), "c8"), "B": np.array([[1 + 2j]], "c8"),
             "C": np.array([1, 0, 0, 1, 1, 1, 2, 0], "f4").reshape(1, 4, 1, 2)}  # 1, i, 1 + i, 2
    written = scan.forward(seq_map, **given)
    # h: 1+2i, 3+6i; 3+6i, 7+14i; y = 2 * Re(C * h)
    assert written["out"].ravel().tolist() == [2, -12, -6, 28]
    assert written["final_states"].ravel().tolist() == [3 + 6j, 7 + 14j]
    gradients = scan.backward(seq_map, **given, dout=np.array([1, 0, 0, 0], "f4").reshape(1, 4, 1),
                              dfinal_states=np.zeros((2, 1, 1), "c8"))
    # y[0] = 2 * Re(C * B * u): by the parts of C, 2 * Re(B) and -2 * Im(B); by those of B, 2 and 0.
    assert gradients["dC"].ravel().tolist() == [2, -4, 0, 0, 0, 0, 0, 0]
    assert gradients["dB"].dtype == np.complex64 and gradients["dB"].tolist() == [[2]]
    assert gradients["dA"].dtype == np.complex64
    with pytest.raises(packjit.BadArgument, match="checkpoints = on does not go with complex_A"):
        packjit.SsmPack(host, complex_A=True, checkpoints=True)


WRAPPED = {
    "conv_width is 4294967298, beyond 32 bits": lambda host: packjit.Conv1dPack(host, conv_width=2**32 + 2),
    "d_state is 1099511627776, beyond 32 bits": lambda host: packjit.SsmPack(host, d_state=2**40),
    "ordinal is 4294967296, beyond 32 bits": lambda host: packjit.Device("host", 2**32),
    "batch is 18446744073709551617, beyond 64 bits": lambda host: packjit.SequenceMap.rows(host, 2**64 + 1, 8),
    "kind is 'foo', expected one of auto, gpu": lambda host: packjit.Device("foo"),
    "dtype is 'float64', expected one of float32, float16": lambda host: packjit.SsmPack(host, dtype="float64"),
}
OF_ANOTHER_TYPE = {
    "conv_width is '4', expected an integer": lambda host: packjit.Conv1dPack(host, conv_width="4"),
    "d_state is 16.0, expected an integer": lambda host: packjit.SsmPack(host, d_state=16.0),
    "ordinal is '1', expected an integer": lambda host: packjit.Device("host", "1"),
    "seqlen is 8.0, expected an integer": lambda host: packjit.SequenceMap.rows(host, 1, 8.0),
    "position_indices: it is a list": lambda host: packjit.SequenceMap.from_position_indices(host, [[0, 1]]),
    "device is a str, expected a packjit.Device": lambda _: packjit.SequenceMap.rows("host", 1, 8),
    "device is a NoneType, expected a packjit.Device": lambda _: packjit.SsmPack(None),
}


MISUSED = {
    "tensor x: list is no tensor": {"x": [[1.0]]},
    "tensor x is missing": {"x": None},
    "the map is a NoneType, expected a packjit.SequenceMap": {"seq_map": None},
}


@pytest.mark.parametrize("message", MISUSED)
def test_misuse_is_named(host, message):
    given = {"seq_map": packjit.SequenceMap.rows(host, 1, 4), "x": np.ones((1, 4, 2), "f4"),
             "weight": np.ones((2, 4), "f4"), "bias": np.ones(2, "f4"), **MISUSED[message]}
    with pytest.raises(packjit.BadArgument, match=message):
        packjit.Conv1dPack(host).forward(given.pop("seq_map"), **given)


@pytest.mark.parametrize("message", WRAPPED)
def test_numbers_that_c_cannot_hold_are_refused(host, message):
    with pytest.raises(packjit.BadArgument, match=message):
        WRAPPED[message](host)


@pytest.mark.parametrize("message", OF_ANOTHER_TYPE)
def test_arguments_of_another_type_are_named(host, message):
    with pytest.raises(TypeError, match=message):
        OF_ANOTHER_TYPE[message](host)


@pytest.mark.parametrize("kind", [int, np.int64, np.array])
def test_numbers_of_any_integer_type_are_taken(host, kind):
    packjit.Conv1dPack(host, conv_width=kind(4))
    packjit.SsmPack(host, d_state=kind(16))
    packjit.SequenceMap.rows(host, kind(1), kind(8), max_sequences=kind(1), max_seqlen=kind(8))
    with pytest.raises(packjit.BadArgument, match="d_state is 0, expected 1 or more"):
        packjit.SsmPack(host, d_state=kind(0))


def test_strided_arrays_are_taken_as_they_are(host):
    seq_map = packjit.SequenceMap.from_position_indices(host, POSITIONS)
    wide = np.zeros((1, 16, 3), dtype=np.float32)
    wide[:, ::2, 1:2] = X
    assert sums_of(host, seq_map, wide[:, ::2, 1:2]) == SUMS
    assert sums_of(host, seq_map, X[:, ::-1][:, ::-1]) == SUMS


class OnlyDlpack:
    """What has DLPack and nothing else."""

    def __init__(self, array):
        self.array, self.shape = array, array.shape

    def __dlpack__(self):
        return self.array.__dlpack__()


def test_dlpack(host):
    seq_map = packjit.SequenceMap.from_position_indices(host, OnlyDlpack(POSITIONS.copy()))
    assert sums_of(host, seq_map, OnlyDlpack(X.copy())) == SUMS
    assert sums_of(host, seq_map, OnlyDlpack(np.repeat(X, 2, axis=1)[:, ::2])) == SUMS


def test_output_in_memory_of_the_caller(host):
    seq_map = packjit.SequenceMap.from_position_indices(host, POSITIONS)
    conv = packjit.Conv1dPack(host, dtype="float32", bias=False, silu=False)
    out = np.full((1, 8, 2), -1, dtype=np.float32)
    done = conv.forward(seq_map, x=X, weight=np.ones((1, 4), np.float32), out=out[:, :, :1])
    assert out[..., 0].ravel().tolist() == SUMS and (out[..., 1] == -1).all() and np.shares_memory(done["out"], out)


def test_prepare_and_describe(host):
    seq_map = packjit.SequenceMap.from_position_indices(host, POSITIONS)
    scan = packjit.SsmPack(host, dtype="float32", d_state=1, softplus=False, D=False, z=False, delta_bias=False,
                           final_states=True)
    shape = scan.shape(seq_map, dim=1)
    scan.prepare(shape, backward=False)
    assert scan.workspace_bytes(_c.BACKWARD, shape) > 0
    described = scan.describe(_c.FORWARD, shape, "final_states")
    assert (described.dtype, tuple(described.shape[:described.rank])) == (_c.FP32, (2, 1, 1))
    with pytest.raises(packjit.BadArgument, match="no tensor 'zz'"):
        scan.describe(_c.FORWARD, shape, "zz")


def test_errors(host):
    assert issubclass(packjit.BadArgument, ValueError) and issubclass(packjit.OutOfMemory, MemoryError)
    with pytest.raises(packjit.PackjitError) as caught:
        packjit.SequenceMap.from_position_indices(host, np.array([[0, 1, 5]]))
    assert caught.value.status == 1 and "token 2 has position 5" in str(caught.value)
    seq_map = packjit.SequenceMap.from_position_indices(host, POSITIONS)
    with pytest.raises(ValueError, match=r"tensor weight"):
        sums_of(host, seq_map, weight=np.ones((2, 4), np.float32))
    with pytest.raises(packjit.BadArgument, match="tensor x: its dtype is float64"):
        sums_of(host, seq_map, X.astype(np.float64))
    with pytest.raises(packjit.BadArgument, match="tensor x: list is no tensor"):
        conv = packjit.Conv1dPack(host, dtype="float32", bias=False, silu=False)
        conv.forward(seq_map, x=[1.0], weight=np.ones((1, 4), np.float32), out=X.copy())
    with pytest.raises(packjit.BadArgument, match="conv_width is 0"):
        packjit.Conv1dPack(host, conv_width=0)
    with pytest.raises(packjit.BadArgument, match="conv_width is 17|17"):
        packjit.Conv1dPack(host, conv_width=17)
    with pytest.raises(packjit.BadArgument, match="shape is \\(8,\\)"):
        packjit.SequenceMap.from_position_indices(host, POSITIONS[0])


class OnTheGpu:
    """A stand-in for an array of another library on a GPU."""

    shape = (1, 8, 1)
    __cuda_array_interface__ = {"shape": (1, 8, 1), "typestr": "<f4", "data": (4096, False), "version": 3}


def test_arrays_on_another_device_are_refused(host):
    with pytest.raises(packjit.BadArgument, match="tensor x: it is in memory of a GPU"):
        sums_of(host, packjit.SequenceMap.from_position_indices(host, POSITIONS), OnTheGpu())


def test_the_device_goes_last(monkeypatch):
    """In whatever order the objects go, their handles are released before the device's."""
    from packjit import device as device_module, operators, sequence_map
    order = []
    gc.collect()  # what other tests left
    real = packjit._library.library()

    class Recording:
        def __getattr__(self, name):
            function = getattr(real, name)
            if not name.endswith("_release"):
                return function
            return lambda handle: (order.append(name), function(handle))

    for module in (device_module, operators, sequence_map):
        monkeypatch.setattr(module, "library", Recording)
    device = packjit.Device.host()
    seq_map = packjit.SequenceMap.from_position_indices(device, POSITIONS)
    conv = packjit.Conv1dPack(device, dtype="float32", bias=False, silu=False)
    del device
    gc.collect()
    assert order == []
    assert sums_of(seq_map.device, seq_map) == SUMS  # another operator, gone by now
    del seq_map, conv
    gc.collect()
    assert order == ["packjit_operator_release", "packjit_map_release", "packjit_operator_release",
                     "packjit_device_release"]


def test_a_library_that_is_not_there_is_named(tmp_path):
    program = ("import packjit\ntry:\n    packjit.version()\n"
               "except packjit.MissingEnvironment as error:\n    print(error)")
    (tmp_path / "libpackjit.so.0").write_text("no library")
    for path, words in ((tmp_path / "none", "PACKJIT_LIBRARY names"),
                        (tmp_path / "libpackjit.so.0", "cannot be used as")):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                              env={"PACKJIT_LIBRARY": str(path), "PYTHONPATH": ":".join(sys.path)})
        assert words in done.stdout, done.stderr


def test_structs_begin_with_their_size():
    for name, struct in vars(_c).items():
        if isinstance(struct, type) and issubclass(struct, _c.Sized) and struct is not _c.Sized:
            assert struct().struct_size == ctypes.sizeof(struct), name


def test_big_endian_arrays_are_refused(host):
    seq_map = packjit.SequenceMap.from_position_indices(host, POSITIONS)
    with pytest.raises(packjit.BadArgument, match="its type is >f4, big-endian"):
        sums_of(host, seq_map, X.astype(">f4"))


def test_outputs_whose_elements_share_memory_are_refused(host):
    seq_map = packjit.SequenceMap.from_position_indices(host, POSITIONS)
    conv = packjit.Conv1dPack(host, dtype="float32", bias=False, silu=False)
    one = np.zeros((1, 1, 1), dtype=np.float32)
    out = np.lib.stride_tricks.as_strided(one, X.shape, (4, 0, 4))
    with pytest.raises(packjit.BadArgument, match=r"tensor out has shape .* and strides .*share memory"):
        conv.forward(seq_map, x=X, weight=np.ones((1, 4), dtype=np.float32), out=out)
    assert one[0, 0, 0] == 0
    dweight = np.lib.stride_tricks.as_strided(one, (1, 4), (4, 0))
    with pytest.raises(packjit.BadArgument, match=r"tensor dweight .*share memory"):
        conv.backward(seq_map, x=X, weight=np.ones((1, 4), dtype=np.float32), dout=X, dweight=dweight)


def test_read_only_memory_is_not_written(host):
    seq_map = packjit.SequenceMap.from_position_indices(host, POSITIONS)
    conv = packjit.Conv1dPack(host, dtype="float32", bias=False, silu=False)
    out = np.zeros_like(X)
    out.flags.writeable = False
    with pytest.raises(packjit.BadArgument, match="tensor out: it is read-only"):
        conv.forward(seq_map, x=X, weight=np.ones((1, 4), dtype=np.float32), out=out)
    assert (out == 0).all()
    frozen = X.copy()
    frozen.flags.writeable = False
    assert sums_of(host, seq_map, frozen) == SUMS
