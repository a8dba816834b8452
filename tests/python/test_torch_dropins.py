"""selective_scan_fn and causal_conv1d_fn over the argument combinations of the official packages, against the fp64
recurrence. GPU runs repeat what the CPU runs, in more dtypes."""

import itertools

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import packjit  # noqa: E402
import packjit.torch as pt  # noqa: E402
from references import assert_close, conv1d, sequences_of, ssm  # noqa: E402
from operator_inputs import in_double, leaves, random  # noqa: E402

BATCH, DIM, SEQLEN, D_STATE = 2, 6, 10, 3
ROWS = torch.arange(SEQLEN).repeat(BATCH, 1)
PACKED = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4, 5, 6], [0, 0, 1, 2, 3, 0, 1, -1, -1, -1]])


def token_major(tensor):
    """(batch, [groups,] d_state, seqlen) as (batch, seqlen, groups, d_state)"""
    return (tensor.unsqueeze(1) if tensor.dim() == 3 else tensor).permute(0, 3, 1, 2)


def layouts(tensor):
    """The same values (batch, dim, seqlen) contiguous, channel-last, sliced, and as the official tests have them."""
    wide = torch.zeros(tensor.shape[0], 2 * tensor.shape[1], tensor.shape[2], dtype=tensor.dtype, device=tensor.device)
    wide[:, 1::2] = tensor
    return {"contiguous": tensor, "channel-last": tensor.transpose(1, 2).contiguous().transpose(1, 2),
            "sliced": wide[:, 1::2]}


def scan_inputs(device, dtype, groups, has, layout="contiguous"):
    bc = (BATCH, D_STATE, SEQLEN) if groups is None else (BATCH, groups, D_STATE, SEQLEN)

    def wide(seed, scale=1.0):
        return layouts(random(BATCH, DIM, SEQLEN, seed=seed, dtype=dtype, device=device, scale=scale))[layout]
    given = {"u": wide(1), "delta": wide(2, 0.5), "A": -random(DIM, D_STATE, seed=3, device=device).abs() - 0.1,
             "B": random(*bc, seed=4, dtype=dtype, device=device), "C": random(*bc, seed=5, dtype=dtype, device=device)}
    if "D" in has:
        given["D"] = random(DIM, seed=6, device=device)
    if "z" in has:
        given["z"] = wide(7)
    if "delta_bias" in has:
        given["delta_bias"] = random(DIM, seed=8, device=device, scale=0.5)
    return leaves(given)


def check_scan(given, positions, softplus, dtype, **packed):
    double = in_double(given)
    out, last = pt.selective_scan_fn(**given, delta_softplus=softplus, return_last_state=True, **packed)
    assert torch.equal(pt.selective_scan_fn(**given, delta_softplus=softplus, **packed), out)
    z = double.get("z")
    expected, states = ssm(double["u"].transpose(1, 2), double["delta"].transpose(1, 2), double["A"],
                           token_major(double["B"]), token_major(double["C"]), double.get("D"),
                           None if z is None else z.transpose(1, 2), double.get("delta_bias"), positions, softplus)
    expected = expected.transpose(1, 2)
    assert out.dtype == dtype and last.dtype == torch.float32
    assert_close(out, expected, "out")
    assert_close(last, states, "last state", dtype)
    dout = random(*out.shape, seed=11)
    (out.double().cpu() * dout.double()).sum().backward()
    (expected * dout.to(dtype).double()).sum().backward()
    for name, tensor in given.items():
        assert_close(tensor.grad, double[name].grad, f"gradient of {name}", dtype)


DTYPES = {"cpu": [torch.float32], "cuda": [torch.float32, torch.float16, torch.bfloat16]}


# On the CPU a few combinations in which every argument is on and off.
@pytest.mark.parametrize("has", [("D", "z", "delta_bias"), ("z",), ("D", "delta_bias"), ()], ids="+".join)
@pytest.mark.parametrize("groups", [None, 2])
def test_selective_scan_fn(device, has, groups):
    for dtype in DTYPES[device.type]:
        softplus = "delta_bias" in has
        given = scan_inputs(device, dtype, groups, has)
        if not softplus:
            with torch.no_grad():
                given["delta"].abs_()
        check_scan(given, ROWS, softplus, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("softplus", [False, True])
@pytest.mark.parametrize("groups", [None, 1, 2, 3])
def test_selective_scan_fn_all_combinations(groups, softplus):
    if not torch.cuda.is_available():
        pytest.skip("no GPU that PyTorch can use")
    everything = ("D", "z", "delta_bias")
    some = [("contiguous", has) for has in itertools.product(*[(name, "") for name in everything])]
    for dtype in DTYPES["cuda"]:
        for layout, has in (*some, ("channel-last", everything), ("sliced", everything)):
            given = scan_inputs("cuda", dtype, groups, has, layout)
            if not softplus:
                with torch.no_grad():
                    given["delta"].abs_()
                    if "delta_bias" in has:
                        given["delta_bias"].abs_()
            check_scan(given, ROWS, softplus, dtype)


@pytest.mark.parametrize("layout", ["channel-last", "sliced"])
def test_selective_scan_fn_takes_any_layout(device, layout):
    check_scan(scan_inputs(device, torch.float32, None, ("D", "z", "delta_bias"), layout), ROWS, True, torch.float32)


def boundary_forms(device):
    """PACKED in every form that can say it."""
    seq_idx = torch.tensor([[0] * 3 + [1] * 7, [5] + [6] * 4 + [7] * 2 + [-1] * 3], dtype=torch.int32)
    return {"position_indices": PACKED.to(device), "seq_idx": seq_idx.to(device),
            "seq_map": pt.SequenceMap.from_position_indices(PACKED.to(device))}


def complex_random(*shape, seed, device, scale=1.0):
    return torch.view_as_complex(random(*shape, 2, seed=seed, scale=scale)).to(device)


CONSTANTS = [(True, True), (True, False), (False, True), (False, False)]


def check_constants_and_complex(device, dtype, constant_B, constant_C, is_complex, groups=None):
    """Boundaries too: PACKED. B and C of tokens of a complex A come as the official function has them."""
    given = scan_inputs(device, dtype, groups, ("D", "z", "delta_bias"))
    length = 2 * SEQLEN if is_complex else SEQLEN
    bc = (BATCH, D_STATE, length) if groups is None else (BATCH, groups, D_STATE, length)
    for seed, name, constant in ((21, "B", constant_B), (22, "C", constant_C)):
        if constant:
            given[name] = (complex_random(DIM, D_STATE, seed=seed, device=device) if is_complex
                           else random(DIM, D_STATE, seed=seed, device=device))
        else:
            given[name] = random(*bc, seed=seed, dtype=dtype, device=device)
    if is_complex:
        given["A"] = torch.complex(given["A"].detach(), random(DIM, D_STATE, seed=23, device=device))
    given = leaves(given)
    double = in_double(given)

    def of_reference(tensor):
        if tensor.dim() == 2:
            return tensor
        return token_major(torch.view_as_complex(tensor.unflatten(-1, (-1, 2))) if is_complex else tensor)

    out, last = pt.selective_scan_fn(**given, delta_softplus=True, return_last_state=True,
                                     position_indices=PACKED.to(device))
    expected, states = ssm(*[double[name].transpose(1, 2) for name in ("u", "delta")], double["A"],
                           of_reference(double["B"]), of_reference(double["C"]), double["D"],
                           double["z"].transpose(1, 2), double["delta_bias"], PACKED, True)
    expected = expected.transpose(1, 2)
    assert out.dtype == dtype and last.is_complex() == is_complex
    assert_close(out, expected, "out")
    assert_close(last, states, "last state", dtype)
    dout, dlast = random(*out.shape, seed=24), random(*last.shape, seed=25)
    ((out.double().cpu() * dout.double()).sum() + (torch.view_as_real(last).sum(-1) if is_complex else last).cpu()
     .double().mul(dlast.double()).sum()).backward()
    ((expected * dout.to(dtype).double()).sum() + (torch.view_as_real(states).sum(-1) if is_complex else states)
     .mul(dlast.double()).sum()).backward()
    for name, tensor in given.items():
        assert_close(tensor.grad, double[name].grad, f"gradient of {name}", dtype)


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("constant_B, constant_C", CONSTANTS)
def test_constant_B_or_C_and_complex_A(device, constant_B, constant_C, is_complex):
    for dtype in DTYPES[device.type]:
        check_constants_and_complex(device, dtype, constant_B, constant_C, is_complex)
        if device.type == "cuda" and not (constant_B and constant_C):
            check_constants_and_complex(device, dtype, constant_B, constant_C, is_complex, groups=2)


def test_conjugates_and_complex_states_compile(device):
    A = torch.complex(-torch.rand(DIM, D_STATE), torch.randn(DIM, D_STATE)).to(device).requires_grad_()
    given = scan_inputs(device, torch.float32, None, ("D", "z", "delta_bias"))
    B, C = [complex_random(DIM, D_STATE, seed=seed, device=device) for seed in (31, 32)]
    del given["A"], given["B"], given["C"]

    def scan(A):
        return pt.selective_scan_fn(A=A, B=B.conj(), C=C, **given, delta_softplus=True)

    expected = scan(A.conj().resolve_conj())
    assert torch.equal(scan(A.conj()), expected)
    compiled = torch.compile(scan, fullgraph=True, backend="aot_eager")(A.conj().resolve_conj())
    assert torch.equal(compiled, expected)


def test_selective_scan_fn_on_packed_rows(device):
    for form, boundaries in boundary_forms(device).items():
        given = scan_inputs(device, torch.float32, None, ("D", "z", "delta_bias"))
        check_scan(given, PACKED, True, torch.float32, **{form: boundaries})
    full = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]])
    cu_seqlens = torch.tensor([0, 3, 10, 20], dtype=torch.int32).to(device)
    check_scan(scan_inputs(device, torch.float32, None, ("D", "z", "delta_bias")), full, True, torch.float32,
               cu_seqlens=cu_seqlens)


def conv_inputs(device, dtype, width, has_bias, layout="contiguous", weight_dtype=None):
    x = layouts(random(BATCH, DIM, SEQLEN, seed=1, dtype=dtype, device=device))[layout]
    given = {"x": x, "weight": random(DIM, width, seed=2, dtype=weight_dtype or dtype, device=device)}
    if has_bias:
        given["bias"] = random(DIM, seed=3, dtype=weight_dtype or dtype, device=device)
    return given


def check_conv(given, positions, activation, dtype, **packed):
    given = {name: tensor.detach().requires_grad_() for name, tensor in given.items()}
    double = in_double(given)
    out = pt.causal_conv1d_fn(**given, activation=activation, **packed)
    assert out.dtype == dtype
    states = None
    if "initial_states" in double:  # of rows: the first sequence of each, where it does not begin with padding
        zero = torch.zeros_like(double["initial_states"][0])
        states = [zero if begin else double["initial_states"][row] for row, begin, _ in sequences_of(positions)]
    expected = conv1d(double["x"].transpose(1, 2), double["weight"], double.get("bias"), positions,
                      activation is not None, states)[0].transpose(1, 2)
    assert_close(out, expected, "out")
    dout = random(*out.shape, seed=12)
    (out.double().cpu() * dout.double()).sum().backward()
    (expected * dout.to(dtype).double()).sum().backward()
    for name, tensor in given.items():
        # Sums over tokens are fp32, and stay it where the parameter is.
        bound = 1e-4 if name in ("weight", "bias") and tensor.dtype == torch.float32 != dtype else None
        assert_close(tensor.grad, double[name].grad, f"gradient of {name}", dtype, bound)
    return out


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("width", [2, 4])
def test_causal_conv1d_fn(device, width, activation):
    for dtype in DTYPES[device.type]:
        given = conv_inputs(device, dtype, width, width == 4)
        out = check_conv(given, ROWS, activation, dtype)
        assert out.stride() == given["x"].stride()


def test_swish_is_silu(device):
    given = conv_inputs(device, torch.float32, 4, True)
    swish, silu = [pt.causal_conv1d_fn(**given, activation=name) for name in ("swish", "silu")]
    assert torch.equal(swish, silu)


@pytest.mark.gpu
@pytest.mark.parametrize("width", [2, 3, 4])
def test_causal_conv1d_fn_all_combinations(width):
    if not torch.cuda.is_available():
        pytest.skip("no GPU that PyTorch can use")
    for dtype, layout, has_bias, activation, weight_dtype in itertools.product(
            DTYPES["cuda"], ("contiguous", "channel-last", "sliced"), (False, True), (None, "silu"),
            (None, torch.float32)):
        given = conv_inputs("cuda", dtype, width, has_bias, layout, weight_dtype)
        check_conv(given, ROWS, activation, dtype)
        check_conv(given, PACKED, activation, dtype, seq_idx=boundary_forms("cuda")["seq_idx"])


def test_fp32_weights_are_not_rounded(device):
    """Nor does a bias of another dtype change that."""
    for dtype in (torch.float16, torch.bfloat16):
        check_conv(conv_inputs(device, dtype, 4, True, weight_dtype=torch.float32), ROWS, "silu", dtype)
        mixed = conv_inputs(device, dtype, 2, True)
        mixed["weight"] = mixed["weight"].float()
        check_conv(mixed, ROWS, None, dtype)
        # y[1] = 2048 * (1 + 2^-12) - 2048: of rounded weights nothing would be left.
        x = torch.full((1, 1, 2), 2048.0, dtype=dtype, device=device)
        weight = torch.tensor([[-1, 1 + 2.0 ** -12]], device=device)
        assert pt.causal_conv1d_fn(x, weight).flatten().tolist() == [2048, 0.5]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_states_of_rows_beside_seq_idx(device, dtype):
    """As in the official function they are for the sequences that rows begin with: the first row's is shorter than the
    filter, the second's is longer, the third row begins with padding, and the fourth has nothing else."""
    seq_idx = torch.tensor([[3, 3, 5, 5, 5, 5, 9, 9, 9, 9], [4, 4, 4, 4, 4, 6, 6, 6, -1, -1],
                            [-1, -1, 7, 7, 7, 7, 8, 8, 8, 8], [-1] * 10], dtype=torch.int32)
    positions = torch.tensor([[0, 1, 0, 1, 2, 3, 0, 1, 2, 3], [0, 1, 2, 3, 4, 0, 1, 2, -1, -1],
                              [-1, -1, 0, 1, 2, 3, 0, 1, 2, 3], [-1] * 10])
    for activation, layout in ((None, "contiguous"), ("silu", "channel-last")):
        x = layouts(random(4, DIM, SEQLEN, seed=1, dtype=dtype, device=device))[layout]
        states = layouts(random(4, DIM, 3, seed=4, dtype=dtype, device=device))[layout]
        given = {**conv_inputs(device, dtype, 4, True, weight_dtype=torch.float32), "x": x, "initial_states": states}
        out = check_conv(given, positions, activation, dtype, seq_idx=seq_idx.to(device))
        unsigned = seq_idx.to(torch.int64).remainder(65536).to(torch.uint16).to(device)  # -1 is 65,535
        assert torch.equal(pt.causal_conv1d_fn(**given, activation=activation, seq_idx=unsigned), out)
        # How many sequences there are is not known while compiling: the graph breaks.
        compiled = torch.compile(pt.causal_conv1d_fn, backend="eager")
        assert torch.equal(compiled(**given, activation=activation, seq_idx=seq_idx.to(device)), out)


@pytest.mark.parametrize("layout", ["channel-last", "sliced"])
def test_causal_conv1d_fn_takes_any_layout(device, layout):
    given = conv_inputs(device, torch.float32, 4, True, layout)
    out = check_conv(given, ROWS, "silu", torch.float32)
    if layout == "channel-last":
        assert out.stride() == given["x"].stride()


def test_causal_conv1d_fn_on_packed_rows(device):
    for form, boundaries in boundary_forms(device).items():
        check_conv(conv_inputs(device, torch.float32, 4, True), PACKED, "silu", torch.float32, **{form: boundaries})


def test_states_of_the_convolution(device):
    """A row in two calls equals the row in one, gradients included; final_states_out is written in place."""
    whole, halves = conv_inputs(device, torch.float32, 4, True), conv_inputs(device, torch.float32, 4, True)
    whole["x"].requires_grad_()
    halves["x"].requires_grad_()
    expected = pt.causal_conv1d_fn(**whole, activation="silu")
    first, second = halves["x"].split([2, SEQLEN - 2], 2)  # shorter than the filter
    options = {"weight": halves["weight"], "bias": halves["bias"], "activation": "silu"}
    zeros = torch.zeros(BATCH, DIM, 3, device=device)
    out_first, states = pt.causal_conv1d_fn(first, **options, initial_states=zeros, return_final_states=True)
    assert torch.equal(states[..., 1:], first) and not states[..., 0].any()
    room = torch.empty_like(zeros)
    out_second, written = pt.causal_conv1d_fn(second, **options, initial_states=states, return_final_states=True,
                                              final_states_out=room)
    assert not room.requires_grad and torch.equal(room, halves["x"][..., -3:]) and torch.equal(written, room)
    found = torch.cat([out_first, out_second], 2)
    assert_close(found, expected, "in two calls")
    expected.square().sum().backward()
    found.square().sum().backward()
    assert_close(halves["x"].grad, whole["x"].grad, "gradient in two calls")


def test_room_for_final_states_serves_step_after_step(device):
    room, weight = torch.empty(1, 1, 3, device=device), torch.ones(1, 4, device=device, requires_grad=True)
    for step in range(2):
        x = torch.tensor([[[1., 2., 3., 4. + step]]], device=device, requires_grad=True)
        out, states = pt.causal_conv1d_fn(x, weight, return_final_states=True, final_states_out=room)
        assert states is not room and room.tolist() == states.tolist() == [[[2, 3, 4 + step]]]
        assert not room.requires_grad
        (out.sum() + 10 * states.sum()).backward()
        assert x.grad.tolist() == [[[4, 13, 12, 11]]]  # one for each tap that meets the token, ten for its state
    with torch.no_grad():
        assert pt.causal_conv1d_fn(x, weight, return_final_states=True, final_states_out=room)[1] is room


def test_states_of_the_scan_in_two_calls(device):
    positions = torch.arange(SEQLEN).repeat(BATCH, 1)
    given = scan_inputs(device, torch.float32, None, ("D", "z", "delta_bias"))
    expected, last = pt.selective_scan_fn(**given, delta_softplus=True, return_last_state=True)
    assert tuple(last.shape) == (BATCH, DIM, D_STATE)
    cut = {name: given[name] for name in ("A", "D", "delta_bias")}
    outs, states = [], torch.zeros(BATCH, DIM, D_STATE, device=device)
    for begin, end in ((0, 4), (4, SEQLEN)):
        piece = {name: given[name][..., begin:end].transpose(1, 2) for name in ("u", "delta", "z", "B", "C")}
        piece["B"], piece["C"] = piece["B"].unsqueeze(2), piece["C"].unsqueeze(2)
        seq_map = pt.SequenceMap.from_position_indices(positions[:, begin:end].to(device))
        out, states = pt.ssm_pack(**piece, **cut, seq_map=seq_map, initial_states=states, return_final_states=True)
        outs.append(out.transpose(1, 2))
    assert_close(torch.cat(outs, 2), expected, "in two calls")
    assert_close(states, last, "last state")


def test_what_is_refused_says_why(device):
    conv = conv_inputs(device, torch.float32, 4, True)
    seq_idx = torch.zeros(BATCH, SEQLEN, dtype=torch.int32, device=device)
    with pytest.raises(packjit.BadArgument, match="seq_idx excludes return_final_states"):
        pt.causal_conv1d_fn(**conv, seq_idx=seq_idx, return_final_states=True)
    with pytest.raises(packjit.BadArgument, match=r"initial_states has shape \(1, 6, 3\), expected \(2, 6, 3\)"):
        pt.causal_conv1d_fn(**conv, seq_idx=seq_idx, initial_states=torch.zeros(1, DIM, 3, device=device))
    with pytest.raises(packjit.BadArgument, match="at most one"):
        pt.causal_conv1d_fn(**conv, seq_idx=seq_idx, position_indices=seq_idx)
    with pytest.raises(NotImplementedError, match="gelu"):
        pt.causal_conv1d_fn(**conv, activation="gelu")
    with pytest.raises(packjit.BadArgument, match=r"\(batch, dim, seqlen\)"):
        pt.causal_conv1d_fn(conv["x"][0], conv["weight"])


def test_rows_compile_whole(device):
    """Boundaries made inside a compiled function, from nothing but shapes."""
    conv = conv_inputs(device, torch.float32, 4, True)
    scan = scan_inputs(device, torch.float32, None, ("D", "z", "delta_bias"))

    def both(conv, scan):
        return (pt.causal_conv1d_fn(**conv, activation="silu"),
                *pt.selective_scan_fn(**scan, delta_softplus=True, return_last_state=True))

    for found, expected in zip(torch.compile(both, fullgraph=True, backend="aot_eager")(conv, scan), both(conv, scan)):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("form", ["rows", "packed"])
def test_states_before_a_single_tap_are_empty(device, form):
    x, weight = torch.randn(BATCH, DIM, SEQLEN, device=device), torch.randn(DIM, 1, device=device)
    given = {} if form == "rows" else {"position_indices": torch.arange(SEQLEN, device=device).expand(BATCH, -1)}
    empty = torch.zeros(BATCH, DIM, 0, device=device)
    out, states = pt.causal_conv1d_fn(x, weight, initial_states=empty, return_final_states=True, **given)
    assert states.shape == (BATCH, DIM, 0)
    assert_close(out, x * weight, "one tap")


def test_room_for_states_of_another_shape_is_refused():
    with pytest.raises(packjit.BadArgument, match="final_states_out has shape"):
        pt.causal_conv1d_fn(torch.randn(BATCH, DIM, SEQLEN), torch.randn(DIM, 4), return_final_states=True,
                            final_states_out=torch.empty(5, BATCH, DIM, 3))
