"""packjit.torch's operators against the fp64 recurrence, autograd through it, and their own other ways of being
called."""

import copy
import ctypes
import pickle

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import packjit  # noqa: E402
import packjit.torch as pt  # noqa: E402
from packjit.torch import calls, exchange, ops  # noqa: E402
from packjit.torch.sequence_map import live_map  # noqa: E402
from references import BOUNDS, assert_close, conv1d, ssm  # noqa: E402

# Two rows; the second begins inside a sequence and ends in padding.
POSITIONS = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 0, 1, 2, 3, 4], [7, 8, 0, 0, 1, 2, 3, 4, 5, 6, -1, -1]])
BATCH, SEQLEN, DIM, WIDTH, D_STATE, GROUPS = 2, 12, 8, 4, 4, 2
SEQUENCES = 6
SSM_NAMES = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias")


def random(*shape, seed=0, dtype=torch.float32, device="cpu", scale=1.0):
    generator = torch.Generator().manual_seed(seed + 1000 * len(shape))
    return (scale * torch.randn(*shape, generator=generator)).to(dtype).to(device)


def leaves(tensors):
    return {name: tensor.detach().requires_grad_() for name, tensor in tensors.items()}


def in_double(tensors):
    return {name: tensor.detach().cpu().to(torch.complex128 if tensor.is_complex() else torch.float64).requires_grad_()
            for name, tensor in tensors.items()}


def conv_inputs(device, dtype=torch.float32, states=False):
    given = {"x": random(BATCH, SEQLEN, DIM, seed=1, dtype=dtype, device=device),
             "weight": random(DIM, WIDTH, seed=2, dtype=dtype, device=device),
             "bias": random(DIM, seed=3, dtype=dtype, device=device)}
    if states:
        given["initial_states"] = random(SEQUENCES, DIM, WIDTH - 1, seed=4, dtype=dtype, device=device)
    return leaves(given)


def ssm_inputs(device, dtype=torch.float32, states=False):
    given = {"u": random(BATCH, SEQLEN, DIM, seed=1, dtype=dtype, device=device),
             "delta": random(BATCH, SEQLEN, DIM, seed=2, dtype=dtype, device=device, scale=0.5),
             "A": -random(DIM, D_STATE, seed=3, device=device).abs() - 0.1,
             "B": random(BATCH, SEQLEN, GROUPS, D_STATE, seed=4, dtype=dtype, device=device),
             "C": random(BATCH, SEQLEN, GROUPS, D_STATE, seed=5, dtype=dtype, device=device),
             "D": random(DIM, seed=6, device=device),
             "z": random(BATCH, SEQLEN, DIM, seed=7, dtype=dtype, device=device),
             "delta_bias": random(DIM, seed=8, device=device, scale=0.5)}
    if states:
        given["initial_states"] = random(SEQUENCES, DIM, D_STATE, seed=9, device=device)
    return leaves(given)


def seq_map_on(device, **limits):
    return pt.SequenceMap.from_position_indices(POSITIONS.to(device), **limits)


def check_against(reference, found, expected, given, given_double, dtype):
    """Outputs and, for the same random weights of their sums, gradients."""
    found = found if isinstance(found, tuple) else (found,)
    weights = [random(*out.shape, seed=50 + place) for place, out in enumerate(found)]
    sum((out.double().cpu() * weight.double()).sum() for out, weight in zip(found, weights)).backward()
    sum((out * weight.double().to(dtype).double()).sum() for out, weight in zip(expected, weights)).backward()
    for place, out in enumerate(found):
        assert_close(out, expected[place], f"{reference} output {place}", dtype)
    for name, tensor in given.items():
        assert tensor.grad.dtype == tensor.dtype
        assert_close(tensor.grad, given_double[name].grad, f"{reference} gradient of {name}", dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("states", [False, True])
def test_convolution_equals_the_formula(device, dtype, states):
    given = conv_inputs(device, dtype, states)
    double = in_double(given)
    found = pt.conv1d_pack(**given, seq_map=seq_map_on(device), return_final_states=states)
    expected = conv1d(double["x"], double["weight"], double["bias"], POSITIONS, True, double.get("initial_states"))
    check_against("conv1d_pack", found, expected, given, double, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("states", [False, True])
def test_scan_equals_the_formula(device, dtype, states):
    given = ssm_inputs(device, dtype, states)
    double = in_double(given)
    found = pt.ssm_pack(**given, seq_map=seq_map_on(device), return_final_states=states)
    expected = ssm(*[double[name] for name in SSM_NAMES], POSITIONS, True, double.get("initial_states"))
    check_against("ssm_pack", found, expected, given, double, dtype)


def test_scan_without_what_is_optional(device):
    given = {name: tensor for name, tensor in ssm_inputs(device).items() if name in ("u", "delta", "A", "B", "C")}
    with torch.no_grad():
        given["delta"].abs_()  # without softplus time must not run backwards
    double = in_double(given)
    found = pt.ssm_pack(**given, seq_map=seq_map_on(device), delta_softplus=False)
    expected = ssm(*[double.get(name) for name in SSM_NAMES], POSITIONS, False)
    check_against("ssm_pack", found, expected, given, double, torch.float32)


def test_stored_checkpoints_change_nothing_but_where_states_come_from(device):
    plain, stored = ssm_inputs(device), ssm_inputs(device)
    outs = [pt.ssm_pack(**plain, seq_map=seq_map_on(device)),
            pt.ssm_pack(**stored, seq_map=seq_map_on(device), checkpoints=True)]
    for out in outs:
        out.sum().backward()
    assert torch.equal(*outs)
    for name in plain:
        assert_close(stored[name].grad, plain[name].grad, name)


def test_checkpoints_with_many_states(device):
    """Their number follows from d_state in steps; 40 is past the second."""
    results = []
    for checkpoints in (False, True):
        given = {name: tensor for name, tensor in ssm_inputs(device).items() if name in ("u", "delta")}
        given.update(A=-torch.rand(given["u"].shape[2], 40, generator=torch.Generator().manual_seed(3)).to(device),
                     B=random(2, 12, 1, 40, seed=4).to(device), C=random(2, 12, 1, 40, seed=5).to(device))
        out = pt.ssm_pack(**given, seq_map=seq_map_on(device), checkpoints=checkpoints)
        out.sum().backward()
        results.append([out, given["u"].grad, given["delta"].grad])
    for stored, computed in zip(*results):
        assert_close(stored, computed, "with stored states")


def run_both(device, seq_map):
    """Outputs and gradients of both operators on the same inputs."""
    conv, scan = conv_inputs(device), ssm_inputs(device)
    outs = [pt.conv1d_pack(**conv, seq_map=seq_map), pt.ssm_pack(**scan, seq_map=seq_map)]
    sum(out.sum() for out in outs).backward()
    return [*outs, *[tensor.grad for tensor in (*conv.values(), *scan.values())]]


def test_all_forms_of_boundaries_give_the_same_bits(device):
    positions = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5]]).to(device)
    seq_idx = torch.tensor([[3, 3, 3, 3, 3, 9, 9, 4, 4, 4, 4, 4], [0] * 6 + [1] * 6], dtype=torch.int32).to(device)
    cu_seqlens = torch.tensor([0, 5, 7, 12, 18, 24], dtype=torch.int32).to(device)
    limits = {"max_sequences": 5, "max_seqlen": 6}
    results = []
    for options in (limits, {}):
        maps = [pt.SequenceMap.from_position_indices(positions, **options),
                pt.SequenceMap.from_seq_idx(seq_idx, **options),
                pt.SequenceMap.from_cu_seqlens(cu_seqlens, 2, 12, **options)]
        assert [seq_map.n_sequences for seq_map in maps] == [5, 5, 5]
        expected, *others = [run_both(device, seq_map) for seq_map in maps]
        for found in others:
            assert all(torch.equal(*pair) for pair in zip(found, expected))
        results.append(expected)
    for pair in zip(*results):  # limits may choose other kernels and orders of sums over all tokens
        assert_close(*pair, "with limits and without")


def test_rows_are_one_sequence_each(device):
    positions = torch.arange(SEQLEN).repeat(BATCH, 1).to(device)
    expected = run_both(device, pt.SequenceMap.from_position_indices(positions))
    for found, wanted in zip(run_both(device, pt.SequenceMap.rows(BATCH, SEQLEN, device)), expected):
        assert torch.equal(found, wanted)


def test_a_map_is_built_anew_for_the_next_batch(device):
    limits = {"max_sequences": 7, "max_seqlen": 12}
    other = torch.arange(SEQLEN).repeat(BATCH, 1).to(device)
    expected = run_both(device, pt.SequenceMap.from_position_indices(other, **limits))
    for options in (limits, {}):
        seq_map = seq_map_on(device, **options)
        run_both(device, seq_map)
        seq_map.update(other)
        seq_map.check()
        assert seq_map.n_sequences == (7 if options else 2)
        for found, wanted in zip(run_both(device, seq_map), expected):
            assert_close(found, wanted, "after update")


def test_a_backward_whose_map_was_built_anew_is_refused(device):
    seq_map = seq_map_on(device, max_sequences=7, max_seqlen=12)
    for compiled in (False, True):
        scan = torch.compile(pt.ssm_pack, backend="aot_eager") if compiled else pt.ssm_pack
        out = scan(**ssm_inputs(device), seq_map=seq_map)
        seq_map.update(POSITIONS.to(device))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


def test_a_map_lives_as_long_as_a_backward_needs_it(device):
    def loss(function):
        return function(**ssm_inputs(device), seq_map=seq_map_on(device)).sum()
    for function in (pt.ssm_pack, torch.compile(pt.ssm_pack, backend="aot_eager", fullgraph=True)):
        loss(function).backward()


def test_a_map_goes_with_the_last_that_needs_it(device):
    import gc
    from packjit.torch.sequence_map import live_map
    seq_map = seq_map_on(device)
    released = live_map(seq_map.handle)._release
    out = pt.ssm_pack(**ssm_inputs(device), seq_map=seq_map)
    del seq_map
    gc.collect()
    assert released.alive
    out.sum().backward()
    del out
    gc.collect()
    assert not released.alive


def test_wrong_boundaries_name_the_token(device):
    wrong = torch.tensor([[0, 1, 5, 3]]).to(device)
    with pytest.raises(packjit.BadArgument, match="token 2 has position 5"):
        pt.SequenceMap.from_position_indices(wrong)
    late = pt.SequenceMap.from_position_indices(wrong, max_sequences=2, max_seqlen=4)
    with pytest.raises(ValueError, match="token 2 has position 5"):
        late.check()


def test_views_of_a_fused_projection_are_taken_as_they_are(device):
    """u, z, B and C are slices of one tensor, delta is expanded along channels; none of them is dense."""
    contiguous = ssm_inputs(device)
    with torch.no_grad():
        contiguous["delta"].copy_(contiguous["delta"][..., :1].expand(-1, -1, DIM).clone())
    fused = torch.cat([contiguous["u"].detach(), contiguous["z"].detach(),
                       contiguous["B"].detach().flatten(2), contiguous["C"].detach().flatten(2)], 2).requires_grad_()
    u, z, B, C = fused.split([DIM, DIM, GROUPS * D_STATE, GROUPS * D_STATE], 2)
    delta = contiguous["delta"].detach()[..., :1].clone().requires_grad_()
    given = {**contiguous, "u": u, "z": z, "delta": delta.expand(-1, -1, DIM),
             "B": B.unflatten(2, (GROUPS, D_STATE)), "C": C.unflatten(2, (GROUPS, D_STATE))}
    seq_map = seq_map_on(device)
    expected = pt.ssm_pack(**contiguous, seq_map=seq_map)
    found = pt.ssm_pack(**given, seq_map=seq_map)
    assert_close(found, expected, "out")
    expected.sum().backward()
    wanted = {name: tensor.grad.clone() for name, tensor in contiguous.items()}
    found.sum().backward()
    assert_close(fused.grad, torch.cat([wanted["u"], wanted["z"], wanted["B"].flatten(2), wanted["C"].flatten(2)], 2),
                 "gradient of the fused projection")
    assert_close(delta.grad, wanted["delta"].sum(2, keepdim=True), "gradient of delta", bound=1e-4)


def test_channel_major_and_expanded_convolution(device):
    contiguous = conv_inputs(device)
    expected = pt.conv1d_pack(**contiguous, seq_map=seq_map_on(device))
    transposed = contiguous["x"].detach().transpose(1, 2).contiguous().transpose(1, 2)
    found = pt.conv1d_pack(transposed, contiguous["weight"], contiguous["bias"], seq_map=seq_map_on(device))
    assert found.stride() == transposed.stride()
    assert_close(found, expected, "channel-major")
    one = contiguous["x"].detach()[:1, :, :1]
    spread = one.expand(BATCH, SEQLEN, DIM)
    expanded, dense = [pt.conv1d_pack(x, contiguous["weight"], contiguous["bias"], seq_map=seq_map_on(device))
                       for x in (spread, spread.contiguous())]
    assert_close(expanded, dense, "expanded")


def test_gradients_through_final_states_alone(device):
    given = ssm_inputs(device, states=True)
    double = in_double(given)
    pt.ssm_pack(**given, seq_map=seq_map_on(device), return_final_states=True)[1].sum().backward()
    ssm(*[double[name] for name in SSM_NAMES], POSITIONS, True, double["initial_states"])[1].sum().backward()
    for name in ("u", "delta", "A", "B", "delta_bias", "initial_states"):
        assert_close(given[name].grad, double[name].grad, name)
    assert not given["C"].grad.any() and not given["z"].grad.any()


def test_parameters_in_other_dtypes_than_activations(device):
    """bf16 activations with fp32 parameters, and with bf16 ones: gradients come in the parameter's dtype."""
    for parameters in (torch.float32, torch.bfloat16):
        scan, conv = ssm_inputs(device, torch.bfloat16), conv_inputs(device, torch.bfloat16)
        for inputs, names in ((scan, ("A", "D", "delta_bias")), (conv, ("weight", "bias"))):
            for name in names:
                inputs[name] = inputs[name].detach().to(torch.bfloat16).to(parameters).requires_grad_()
        double_scan, double_conv = in_double(scan), in_double(conv)
        seq_map = seq_map_on(device)
        out = pt.ssm_pack(**scan, seq_map=seq_map)
        assert out.dtype == torch.bfloat16
        check_against("ssm_pack", out, ssm(*[double_scan[name] for name in SSM_NAMES], POSITIONS, True), scan,
                      double_scan, torch.bfloat16)
        out = pt.conv1d_pack(**conv, seq_map=seq_map)
        check_against("conv1d_pack", out,
                      conv1d(double_conv["x"], double_conv["weight"], double_conv["bias"], POSITIONS, True), conv,
                      double_conv, torch.bfloat16)
        # fp32 parameters get sums that were never rounded to bf16.
        if parameters == torch.float32:
            assert_close(conv["weight"].grad, double_conv["weight"].grad, "dweight", bound=1e-4)


def test_autocast_casts_activations_and_leaves_parameters(device):
    scan, conv = ssm_inputs(device), conv_inputs(device)
    seq_map = seq_map_on(device)
    halves = {name: tensor.detach().bfloat16() if tensor.dim() > 2 else tensor for name, tensor in scan.items()}
    expected_scan = pt.ssm_pack(**halves, seq_map=seq_map)
    expected_conv = pt.conv1d_pack(conv["x"].detach().bfloat16(), conv["weight"], conv["bias"], seq_map=seq_map)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        found = [pt.ssm_pack(**scan, seq_map=seq_map), pt.conv1d_pack(**conv, seq_map=seq_map),
                 # Straight to the operators, as traced code goes.
                 torch.ops.packjit.ssm_pack(*scan.values(), None, seq_map.handle, True, False, 0, False)[0],
                 torch.ops.packjit.conv1d_pack(*conv.values(), None, seq_map.handle, True, False, 0)[0]]
    for out, expected in zip(found, (expected_scan, expected_conv) * 2):
        assert out.dtype == torch.bfloat16 and torch.equal(out, expected)
    found[0].sum().backward()
    assert all(tensor.grad.dtype == torch.float32 for tensor in scan.values())


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_equals_eager(device, backend):
    if backend == "inductor" and device.type == "cpu":
        pytest.skip("inductor's C++ compiles take half a minute; aot_eager traces the same operators")
    limits = {"max_sequences": 7, "max_seqlen": 12}

    def layer(x, conv, scan, positions, seq_map):
        own = pt.SequenceMap.from_position_indices(positions, **limits)  # made inside, too
        x = pt.conv1d_pack(x, conv["weight"], conv["bias"], seq_map=seq_map)
        out, states = pt.ssm_pack(x, *[scan[name] for name in SSM_NAMES[1:]], seq_map=seq_map, return_final_states=True,
                                  checkpoints=True)
        return pt.ssm_pack(out, *[scan[name] for name in SSM_NAMES[1:]], seq_map=own), states

    def run(function):
        conv, scan = conv_inputs(device), ssm_inputs(device)
        del scan["u"]
        out, states = function(conv.pop("x"), conv, scan, POSITIONS.to(device), seq_map_on(device, **limits))
        (out.sum() + states.sum()).backward()
        return [out, states, *[tensor.grad for tensor in (*conv.values(), *scan.values())]]

    for found, expected in zip(run(torch.compile(layer, fullgraph=True, backend=backend)), run(layer)):
        assert_close(found, expected, backend)


def test_a_new_batch_compiles_nothing_anew(device):
    from torch._dynamo.testing import CompileCounter
    counter = CompileCounter()
    scan = torch.compile(lambda given, seq_map: pt.ssm_pack(**given, seq_map=seq_map), fullgraph=True, backend=counter)
    given = ssm_inputs(device)
    for positions in (POSITIONS, torch.arange(SEQLEN).repeat(BATCH, 1)):
        seq_map = pt.SequenceMap.from_position_indices(positions.to(device))
        assert torch.equal(scan(given, seq_map), pt.ssm_pack(**given, seq_map=seq_map))
    assert counter.frame_count == 1


def test_opcheck(device):
    seq_map = seq_map_on(device)
    conv, scan = conv_inputs(device, states=True), ssm_inputs(device, states=True)
    ops = torch.ops.packjit
    torch.library.opcheck(ops.conv1d_pack, (*conv.values(), seq_map.handle, True, True, SEQUENCES))
    torch.library.opcheck(ops.conv1d_pack, (conv["x"], conv["weight"], None, None, seq_map.handle, False, False, 0))
    torch.library.opcheck(ops.ssm_pack, (*scan.values(), seq_map.handle, True, True, SEQUENCES, False))
    # Checkpoints hold nothing where no sequence needs it, so their values are not compared.
    torch.library.opcheck(ops.ssm_pack, (*scan.values(), seq_map.handle, True, True, SEQUENCES, True),
                          test_utils=("test_schema", "test_autograd_registration", "test_faketensor"))
    torch.library.opcheck(ops.ssm_pack, (*list(scan.values())[:5], None, None, None, None, seq_map.handle, True, False,
                                         0, False))
    # Backwards have no gradient, and say so: their inputs need none here.
    conv, scan = ({name: tensor.detach() for name, tensor in given.items()} for given in (conv, scan))
    dout = random(BATCH, SEQLEN, DIM, seed=20, device=device)
    torch.library.opcheck(ops.conv1d_pack_backward, (*conv.values(), dout, torch.zeros_like(conv["initial_states"]),
                                                     seq_map.handle, True))
    torch.library.opcheck(ops.ssm_pack_backward, (*scan.values(), dout, torch.zeros_like(scan["initial_states"]), None,
                                                  seq_map.handle, True))


def test_double_backward_is_refused(device):
    for given, run in ((conv_inputs(device), pt.conv1d_pack), (ssm_inputs(device), pt.ssm_pack)):
        first = next(iter(given.values()))
        loss = run(**given, seq_map=seq_map_on(device)).square().sum()
        gradient, = torch.autograd.grad(loss, first, create_graph=True)
        with pytest.raises(RuntimeError, match="double backward is not supported"):
            gradient.sum().backward()


def test_recomputed_activations(device):
    from torch.utils.checkpoint import checkpoint
    given = ssm_inputs(device)
    pt.ssm_pack(**given, seq_map=seq_map_on(device)).sum().backward()
    expected = {name: tensor.grad.clone() for name, tensor in given.items()}
    for tensor in given.values():
        tensor.grad = None
    seq_map = seq_map_on(device)
    checkpoint(lambda: pt.ssm_pack(**given, seq_map=seq_map), use_reentrant=False).sum().backward()
    assert all(torch.equal(tensor.grad, expected[name]) for name, tensor in given.items())


def test_threads(device):
    from concurrent.futures import ThreadPoolExecutor
    expected = run_both(device, seq_map_on(device))

    def work(_):
        if device.type == "cuda":
            with torch.cuda.stream(torch.cuda.Stream(device)):
                found = run_both(device, seq_map_on(device))
                torch.cuda.current_stream(device).synchronize()
                return found
        return run_both(device, seq_map_on(device))

    with ThreadPoolExecutor(3) as pool:
        for found in pool.map(work, range(6)):
            assert all(torch.equal(*pair) for pair in zip(found, expected))


@pytest.mark.gpu
def test_two_gpus_at_once_give_the_bits_of_one():
    """Tensors say where a call runs, whatever the current device is."""
    from concurrent.futures import ThreadPoolExecutor
    devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())][:2]
    kinds = {torch.cuda.get_device_capability(device) for device in devices}
    if len(devices) < 2 or len(kinds) > 1:
        pytest.skip(f"needs two GPUs of one kind that PyTorch can use, and there are {len(devices)} of {len(kinds)}")
    expected = [tensor.cpu() for tensor in run_both(devices[0], seq_map_on(devices[0]))]

    def work(number):
        device = devices[number % 2]
        return [tensor.cpu() for tensor in run_both(device, seq_map_on(device))]

    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(work, range(8)):
            assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


MISUSES = {
    "seq_map is a NoneType": lambda given: {"seq_map": None},
    r"tensor delta.*\(2, 11, 8\)": lambda given: {"delta": given["delta"][:, :-1]},
    "tensor delta is bf16, expected fp32": lambda given: {"delta": given["delta"].to(torch.bfloat16)},
    "its dtype is torch.float64, expected float32": lambda given: {"u": given["u"].double()},
    r"tensor A.*\(7, 4\)": lambda given: {"A": given["A"][:-1]},
    r"tensor B.*\(2, 12, 8\)": lambda given: {"B": given["B"].flatten(2)},
}


@pytest.mark.parametrize("message", MISUSES)
def test_misuse_is_named(device, message):
    given = {**ssm_inputs(device), "seq_map": seq_map_on(device)}
    given.update(MISUSES[message](given))
    with pytest.raises(packjit.BadArgument, match=message):
        pt.ssm_pack(**given)

TABLES = {"of PyTorch": exchange.PYTHON, "in Python": exchange.python_with(ctypes.addressof(exchange.TABLE_IN_PYTHON))}


@pytest.fixture(params=TABLES)
def table(request, monkeypatch):
    """Both ways in which the library can read tensors; older versions of PyTorch have the second alone."""
    monkeypatch.setattr(calls, "_python", ctypes.addressof(TABLES[request.param]))


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


def test_an_interruption_while_tensors_are_read_is_raised(device, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt
    monkeypatch.setattr(calls, "_python", ctypes.addressof(TABLES["in Python"]))
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


@pytest.mark.gpu
def test_tensors_on_another_device_than_the_map():
    if not torch.cuda.is_available():
        pytest.skip("no GPU that PyTorch can use")
    with pytest.raises(packjit.BadArgument, match="the SequenceMap is for|made with another device"):
        pt.ssm_pack(**ssm_inputs("cuda"), seq_map=seq_map_on("cpu"))


@pytest.mark.gpu
def test_a_training_step_in_a_graph_follows_its_boundaries():
    if not torch.cuda.is_available():
        pytest.skip("no GPU that PyTorch can use")
    device = torch.device("cuda")
    positions = POSITIONS.to(device)
    seq_map = pt.SequenceMap.from_position_indices(positions, max_sequences=7, max_seqlen=12)
    conv, scan = conv_inputs(device), ssm_inputs(device)
    tensors = (*conv.values(), *scan.values())

    def step():
        seq_map.update(positions)
        out = pt.ssm_pack(pt.conv1d_pack(**conv, seq_map=seq_map), *list(scan.values())[1:], seq_map=seq_map,
                          checkpoints=True)
        return [out, *torch.autograd.grad(out.sum(), [*conv.values(), *list(scan.values())[1:]])]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()  # compiles and loads
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for boundaries in (POSITIONS, torch.arange(SEQLEN).repeat(BATCH, 1)):
        positions.copy_(boundaries)
        with torch.no_grad():
            tensors[0].copy_(random(BATCH, SEQLEN, DIM, seed=77, device=device))
        graph.replay()
        seq_map.check()
        found = [tensor.clone() for tensor in captured]
        assert all(torch.equal(*pair) for pair in zip(found, step()))


def test_bounds_are_those_of_the_design():
    assert BOUNDS == {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 4e-3}


def test_a_map_built_anew_is_refused_behind_saved_tensor_hooks_and_recomputation():
    seq_map = seq_map_on("cpu", max_sequences=7, max_seqlen=12)
    x, weight = conv_inputs("cpu")["x"], conv_inputs("cpu")["weight"]

    def convolve(x):
        return pt.conv1d_pack(x, weight, seq_map=seq_map)

    with torch.autograd.graph.save_on_cpu():
        hooked = convolve(x).sum()
    plain = torch.utils.checkpoint.checkpoint(convolve, x, use_reentrant=False).sum()
    seq_map.update(POSITIONS.roll(1, 0))
    with pytest.raises((packjit.PackjitError, RuntimeError), match="updated between|modified by an inplace"):
        hooked.backward()
    with pytest.raises((packjit.PackjitError, RuntimeError), match="updated between|modified by an inplace"):
        plain.backward()


def test_a_new_map_is_refused_in_a_recomputed_chain():
    """Without limits `update` makes another map; of two operators in a row the second one's input was the old one's."""
    seq_map = seq_map_on("cpu")
    x, weight = conv_inputs("cpu")["x"], conv_inputs("cpu")["weight"]

    def twice(x):
        return pt.conv1d_pack(pt.conv1d_pack(x, weight, seq_map=seq_map), weight, seq_map=seq_map)
    out = torch.utils.checkpoint.checkpoint(twice, x, use_reentrant=False).sum()
    seq_map.update(POSITIONS.roll(1, 0))
    with pytest.raises(packjit.PackjitError, match="updated between"):
        out.backward()


def test_complex_weights_of_the_convolution_are_refused():
    given = {name: tensor.detach() for name, tensor in conv_inputs("cpu").items()}
    for name in ("weight", "bias"):
        with pytest.raises(packjit.BadArgument, match=f"{name} is torch.complex64"):
            pt.conv1d_pack(**{**given, name: given[name].to(torch.complex64)}, seq_map=seq_map_on("cpu"))


@pytest.mark.parametrize("operator", ["conv1d_pack", "ssm_pack"])
def test_gradients_of_a_batch_of_outputs(device, operator):
    given = conv_inputs(device) if operator == "conv1d_pack" else ssm_inputs(device)
    out = getattr(pt, operator)(**given, seq_map=seq_map_on(device))
    main = given.get("x", given.get("u"))
    douts = torch.stack([torch.ones_like(out), torch.arange(out.numel(), device=device).view_as(out).to(out.dtype)])
    batched, = torch.autograd.grad(out, main, douts, is_grads_batched=True, retain_graph=True)
    for dout, found in zip(douts, batched):
        assert torch.equal(found, torch.autograd.grad(out, main, dout, retain_graph=True)[0])


def test_maps_are_not_copied():
    seq_map = seq_map_on("cpu")
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            copied(seq_map.handle._packjit_map)
    module = torch.nn.Linear(2, 2)
    module.seq_map = seq_map
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        copy.deepcopy(module)


def test_forward_mode_is_refused():
    given = conv_inputs("cpu")
    tangent = torch.ones_like(given["weight"])
    with pytest.raises(packjit.PackjitError, match="no forward-mode gradients"):
        torch.func.jvp(lambda weight: pt.conv1d_pack(given["x"], weight, seq_map=seq_map_on("cpu")),
                       (given["weight"].detach(),), (tangent,))


def test_the_rows_of_drop_ins_serve_training_after_inference_and_fake_tensors():
    x, weight = torch.ones(1, 2, 6), torch.ones(2, 4, requires_grad=True)
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        pt.causal_conv1d_fn(torch.ones(1, 2, 6), torch.ones(2, 4))
    with torch.inference_mode():
        pt.causal_conv1d_fn(x, weight)
    pt.causal_conv1d_fn(x, weight).sum().backward()
    # The tap at distance k meets 6 - k tokens.
    assert weight.grad.tolist() == [[3, 4, 5, 6]] * 2


def test_a_tensor_in_place_of_a_map_is_named():
    with pytest.raises(packjit.BadArgument, match="boundaries as tensors go by name"):
        pt.Mamba(16)(torch.ones(1, 8, 16), torch.arange(8)[None])
    with pytest.raises(packjit.BadArgument, match="max_sequences is 0 and max_seqlen is 0, expected 1 or more"):
        pt.SequenceMap.from_position_indices(torch.arange(8)[None], max_sequences=0, max_seqlen=0)
