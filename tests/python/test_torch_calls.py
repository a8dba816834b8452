"""How packjit.torch reads the tensors of a call: strides, views, what is refused, and both tables of functions."""

import ctypes

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import packjit  # noqa: E402
import packjit.torch as pt  # noqa: E402
from packjit.torch import exchange, ops  # noqa: E402
from packjit.torch.sequence_map import live_map  # noqa: E402
from operator_inputs import (  # noqa: E402
    BATCH, DIM, POSITIONS, SEQLEN, SSM_NAMES, check_against, conv_inputs, in_double, seq_map_on, ssm_inputs)
from references import ssm  # noqa: E402

MISUSES = {
    "seq_map is a NoneType": lambda given: {"seq_map": None},
    r"tensor delta.*\(2, 11, 8\)": lambda given: {"delta": given["delta"][:, :-1]},
    "tensor delta is bf16, expected fp32": lambda given: {"delta": given["delta"].to(torch.bfloat16)},
    "its dtype is torch.float64, expected float32": lambda given: {"u": given["u"].double()},
    r"tensor A.*\(7, 4\)": lambda given: {"A": given["A"][:-1]},
    r"tensor B.*\(2, 12, 8\)": lambda given: {"B": given["B"].flatten(2)},
    r"tensor u.*\(12, 8\)": lambda given: {"u": given["u"][0], "checkpoints": True},
}


@pytest.mark.parametrize("message", MISUSES)
def test_misuse_is_named(device, message):
    given = {**ssm_inputs(device), "seq_map": seq_map_on(device)}
    given.update(MISUSES[message](given))
    with pytest.raises(packjit.BadArgument, match=message):
        pt.ssm_pack(**given)


TABLES = {"of PyTorch": exchange.TABLE, "in Python": ctypes.addressof(exchange.TABLE_IN_PYTHON)}


@pytest.fixture(params=TABLES)
def table(request, monkeypatch):
    """Both ways in which the library can read tensors; older versions of PyTorch have the second alone."""
    monkeypatch.setattr(exchange, "TABLE", TABLES[request.param])


def test_both_tables_give_the_same(device, table):
    seq_map = seq_map_on(device, max_sequences=7, max_seqlen=12)
    given = ssm_inputs(device, torch.bfloat16)
    sliced = torch.randn(BATCH, SEQLEN, 3 * DIM, generator=torch.Generator().manual_seed(8)).to(device, torch.bfloat16)
    u = sliced[:, :, DIM:2 * DIM].requires_grad_()  # begins past its memory's beginning
    given["u"], given["z"] = u, given["z"].detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    found = pt.ssm_pack(**given, seq_map=seq_map)
    double = in_double(given)
    expected = ssm(*[double[name] for name in SSM_NAMES], POSITIONS, True, None)
    check_against("ssm_pack", found, expected, given, double, torch.bfloat16)


def test_misuse_is_named_with_both_tables(device, table):
    given, seq_map = conv_inputs(device), seq_map_on(device)
    for name, wrong, message in (
            ("x", given["x"].double(), "tensor x: its dtype is torch.float64"),
            ("x", given["x"].detach().to_sparse(), "tensor x: its layout is torch.sparse_coo|sparse"),
            ("weight", given["weight"].detach().to("meta"), "tensor weight is on meta, x on"),
            ("x", given["x"].reshape(1, 1, *given["x"].shape), r"tensor x: it has 5 dimensions, expected 1 to 4")):
        with pytest.raises(packjit.BadArgument, match=message), torch.no_grad():
            pt.conv1d_pack(**{**given, name: wrong}, seq_map=seq_map)


def test_parameters_that_are_not_dense_are_copied(device, table):
    given, seq_map = conv_inputs(device), seq_map_on(device)
    expected = pt.conv1d_pack(**given, seq_map=seq_map)
    given["weight"] = given["weight"].detach().t().contiguous().t().requires_grad_()
    assert not given["weight"].is_contiguous()
    found = pt.conv1d_pack(**given, seq_map=seq_map)
    assert torch.equal(found, expected)
    found.sum().backward()
    assert given["weight"].grad.shape == given["weight"].shape


def test_outputs_whose_elements_share_memory_are_refused(device):
    """The gradients that a caller brings the memory of."""
    given, seq_map = conv_inputs(device), live_map(seq_map_on(device).handle)
    x, weight, bias = given["x"].detach(), given["weight"].detach(), given["bias"].detach()
    dx = torch.zeros(BATCH, 1, DIM, device=device).expand(x.shape)
    with pytest.raises(packjit.BadArgument, match="tensor dx has shape .* share memory"):
        ops.conv_backward(seq_map, x, weight, bias, None, torch.ones_like(x), None, True, dx=dx)


def test_complex_weights_of_the_convolution_are_refused():
    given = {name: tensor.detach() for name, tensor in conv_inputs("cpu").items()}
    for name in ("weight", "bias"):
        with pytest.raises(packjit.BadArgument, match=f"{name} is torch.complex64"):
            pt.conv1d_pack(**{**given, name: given[name].to(torch.complex64)}, seq_map=seq_map_on("cpu"))


def test_views_with_the_negative_bit(device):
    """Of c.conj().imag memory has the numbers with the other sign; of complex(a, y).conj() it is y's gradient."""
    seq_map, given = seq_map_on(device), conv_inputs(device)
    x, weight = given["x"].detach(), given["weight"].detach()
    lazy = torch.complex(torch.zeros_like(x), -x).conj().imag
    assert lazy.is_neg() and torch.equal(lazy, x)
    assert torch.equal(pt.conv1d_pack(lazy, weight, seq_map=seq_map), pt.conv1d_pack(x, weight, seq_map=seq_map))

    leaf = x.clone().requires_grad_()
    y, dout = pt.conv1d_pack(leaf, weight, seq_map=seq_map), torch.randn_like(x)
    expected, = torch.autograd.grad(y, leaf, -dout, retain_graph=True)
    found, = torch.autograd.grad(torch.complex(torch.zeros_like(y), y).conj(), leaf, torch.complex(dout, dout))
    assert torch.equal(found, expected)

    one = torch.randn(1, 1, 1, device=device)  # its strides say nothing
    of_one = pt.SequenceMap.rows(1, 1, torch.device(device))
    lazy = torch.complex(torch.zeros_like(one), -one).conj().imag
    kernel = torch.randn(1, 4, device=device)
    assert torch.equal(pt.conv1d_pack(lazy, kernel, seq_map=of_one), pt.conv1d_pack(one, kernel, seq_map=of_one))


@pytest.mark.parametrize("table", ["in Python"], indirect=True)
def test_an_interruption_while_tensors_are_read_is_raised(device, table, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt
    given, seq_map = conv_inputs(device), seq_map_on(device)
    with monkeypatch.context() as patch, torch.no_grad(), pytest.raises(KeyboardInterrupt):
        patch.setattr(exchange, "_description", interrupted)
        pt.conv1d_pack(**given, seq_map=seq_map)
    assert not exchange.INTERRUPTIONS


def test_scratch_memory_in_python_is_given_back():
    like = exchange.DLTensor(device_type=1, ndim=1, shape=(ctypes.c_int64 * 1)(1000))
    made = ctypes.POINTER(exchange._Managed)()
    errors = []
    set_error = exchange._SET_ERROR(lambda context, kind, message: errors.append(message))
    table = exchange.TABLE_IN_PYTHON
    assert table.allocate(ctypes.byref(like), ctypes.byref(made), None, set_error) == 0
    assert made.contents.tensor.data and len(exchange._lent) == 1
    made.contents.deleter(made)
    assert not exchange._lent
    like.shape[0] = 1 << 60
    assert table.allocate(ctypes.byref(like), ctypes.byref(made), None, set_error) == -1
    assert len(errors) == 1 and not exchange._lent


def test_complex_numbers_lose_no_imaginary_part():
    """Under autocast, or where a parameter is cast."""
    conv, scan, seq_map = conv_inputs("cpu"), ssm_inputs("cpu"), seq_map_on("cpu")
    states = torch.zeros(6, DIM, 3, dtype=torch.complex64)
    with pytest.raises(packjit.BadArgument, match="initial_states is torch.complex64, expected real numbers"):
        pt.conv1d_pack(**conv, seq_map=seq_map, initial_states=states)
    with pytest.raises(packjit.BadArgument, match="tensor D: its dtype is torch.complex128"):
        pt.ssm_pack(**{**scan, "D": scan["D"].to(torch.complex128)}, seq_map=seq_map)
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(packjit.BadArgument, match="found complex64"):
            pt.conv1d_pack(**{**conv, "x": conv["x"].to(torch.complex64)}, seq_map=seq_map)
        for name in ("u", "z"):
            with pytest.raises(packjit.BadArgument, match="complex64"):
                pt.ssm_pack(**{**scan, name: scan[name].to(torch.complex64)}, seq_map=seq_map)


def test_a_switch_is_what_python_takes_it_for():
    given, seq_map = ssm_inputs("cpu"), seq_map_on("cpu")
    for value in (None, 0, 1, "on"):
        found = pt.ssm_pack(**given, seq_map=seq_map, delta_softplus=value)
        assert torch.equal(found, pt.ssm_pack(**given, seq_map=seq_map, delta_softplus=bool(value)))


def test_traced_calls_compute():
    """torch.jit.trace sees PyTorch's operators alone: the registered ones, not what an eager call writes itself."""
    given, seq_map = {name: tensor.detach() for name, tensor in conv_inputs("cpu").items()}, seq_map_on("cpu")
    traced = torch.jit.trace(lambda x: pt.conv1d_pack(x, given["weight"], given["bias"], seq_map=seq_map), given["x"])
    other = torch.randn_like(given["x"])
    assert torch.equal(traced(other), pt.conv1d_pack(**{**given, "x": other}, seq_map=seq_map))


def test_views_whose_numbers_are_not_in_memory_are_refused_without_the_pytorch_layer():
    """packjit.Conv1dPack reads memory, of PyTorch's tensors too."""
    device = packjit.Device.host()
    of_rows = packjit.SequenceMap.from_host(device, "rows", None, 1, 8)
    lazy = torch.randn(1, 8, 4, dtype=torch.complex64).conj()
    for x in (lazy.imag, lazy):
        with pytest.raises(packjit.BadArgument, match="tensor x: .*conjugate or negative bit"):
            packjit.Conv1dPack(device, dtype="float32").forward(of_rows, x=x, weight=torch.zeros(4, 4),
                                                                bias=torch.zeros(4), out=torch.empty(1, 8, 4))
