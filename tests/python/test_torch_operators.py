"""packjit.torch's operators against the fp64 recurrence, autograd through it, and their own other ways of being
called."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import packjit  # noqa: E402
import packjit.torch as pt  # noqa: E402
from operator_inputs import (  # noqa: E402
    BATCH, DIM, D_STATE, GROUPS, POSITIONS, SEQLEN, SEQUENCES, SSM_NAMES, check_against, conv_inputs, in_double,
    random, run_both, seq_map_on, ssm_inputs)
from references import BOUNDS, assert_close, conv1d, ssm  # noqa: E402


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


def test_bounds_are_those_of_the_design():
    assert BOUNDS == {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 4e-3}


@pytest.mark.parametrize("operator", ["conv1d_pack", "ssm_pack"])
def test_gradients_of_a_batch_of_outputs(device, operator):
    given = conv_inputs(device) if operator == "conv1d_pack" else ssm_inputs(device)
    out = getattr(pt, operator)(**given, seq_map=seq_map_on(device))
    main = given.get("x", given.get("u"))
    douts = torch.stack([torch.ones_like(out), torch.arange(out.numel(), device=device).view_as(out).to(out.dtype)])
    batched, = torch.autograd.grad(out, main, douts, is_grads_batched=True, retain_graph=True)
    for dout, found in zip(douts, batched):
        assert torch.equal(found, torch.autograd.grad(out, main, dout, retain_graph=True)[0])


def test_gradients_of_a_batch_of_final_states(device):
    given = conv_inputs(device)
    _, states = pt.conv1d_pack(**given, seq_map=seq_map_on(device), return_final_states=True)
    dstates = torch.stack([torch.ones_like(states), 2 * torch.ones_like(states)])
    once, twice = torch.autograd.grad(states, given["x"], dstates, is_grads_batched=True)[0]
    assert once.any() and torch.equal(twice, 2 * once)


@pytest.mark.parametrize("found", [[1.0, 2.0], np.ones((4, 3), "f4"), 3, "x"])
@pytest.mark.parametrize("name", ["conv1d_pack", "ssm_pack", "causal_conv1d_fn", "selective_scan_fn"])
def test_arguments_that_are_no_tensors_are_named(name, found):
    function, given = getattr(pt, name), conv_inputs("cpu") if "conv1d" in name else ssm_inputs("cpu")
    if name.endswith("fn"):
        given = {key: given[key].detach().transpose(1, 2) if key in ("x", "u", "delta", "z") else given[key]
                 for key in given}
    optional = {"bias", "D", "z", "delta_bias", "initial_states"}
    for argument in given:
        for other in (found, *([] if argument in optional else [None])):
            expected = f"{name}: {argument} is a {type(other).__name__}, expected a torch.Tensor"
            with pytest.raises(TypeError, match=expected):
                function(**{**given, argument: other}, seq_map=seq_map_on("cpu"))
    with pytest.raises(ValueError, match="seq_map is a "):
        function(**given, seq_map=found)


def test_shapes_of_a_scalar_weight_and_of_drop_ins_are_named():
    with pytest.raises(ValueError, match="tensor weight: it has 0 dimensions"):
        pt.conv1d_pack(**{**conv_inputs("cpu"), "weight": torch.tensor(1.0)}, seq_map=seq_map_on("cpu"))
    row, pairs = torch.ones(1, 4, 8), torch.ones(4, 2)
    for name in ("delta", "z"):
        given = {"delta": row, "z": row, name: torch.ones(3)}
        with pytest.raises(ValueError, match=rf"selective_scan_fn: {name} has shape \(3,\)"):
            pt.selective_scan_fn(row, A=pairs, B=pairs, C=pairs, **given)


def test_boundaries_and_losses_of_no_tensors_are_named():
    with pytest.raises(TypeError, match="cu_seqlens: it is a list, expected a tensor"):
        pt.SequenceMap.from_cu_seqlens([0, 8], 1, 8)
    with pytest.raises(TypeError, match="SequenceMap.update: position_indices is a list, expected a tensor"):
        seq_map_on("cpu").update([[0, 1]])
    with pytest.raises(TypeError, match="linear_cross_entropy: targets is a list, expected a torch.Tensor"):
        pt.linear_cross_entropy(torch.ones(2, 4), torch.ones(3, 4), [0, 1], torch.ones(2))
    with pytest.raises(TypeError, match="next_token_targets: input_ids is a NoneType, expected a torch.Tensor"):
        pt.next_token_targets(None, torch.zeros(1, 2))
    with pytest.raises(ValueError, match=r"next_token_targets takes .* and was given \(2,\) and \(1, 2\)"):
        pt.next_token_targets(torch.zeros(2), torch.zeros(1, 2))


def test_forward_mode_is_refused():
    given = conv_inputs("cpu")
    tangent = torch.ones_like(given["weight"])
    with pytest.raises(packjit.PackjitError, match="no forward-mode gradients"):
        torch.func.jvp(lambda weight: pt.conv1d_pack(given["x"], weight, seq_map=seq_map_on("cpu")),
                       (given["weight"].detach(),), (tangent,))
