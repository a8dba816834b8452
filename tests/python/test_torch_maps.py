"""Boundaries in packjit.torch: their forms, how long a map lives, building it anew, and who may use it."""

import copy
import functools
import pickle

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import packjit  # noqa: E402
import packjit.torch as pt  # noqa: E402
from operator_inputs import (  # noqa: E402
    BATCH, DIM, POSITIONS, SEQLEN, conv_inputs, random, run_both, seq_map_on, ssm_inputs)
from references import assert_close  # noqa: E402


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


def ways_around_versions():
    """[(name, function of a map, the same called plainly)] of what goes through the registered operators while hooks
    keep what autograd saves, so that it does not see for itself that a map was updated; and the leaf."""
    from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
    torch.manual_seed(0)
    block, x = pt.Mamba(DIM, 4), random(BATCH, SEQLEN, DIM, seed=1).requires_grad_()
    A, B = torch.complex(-torch.rand(DIM, 3), torch.randn(DIM, 3)), torch.randn(BATCH, SEQLEN, 1, 6)
    contexts = functools.partial(create_selective_checkpoint_contexts,
                                 lambda *_, **__: CheckpointPolicy.PREFER_RECOMPUTE)

    def scan(seq_map, u=x):
        return pt.ssm_pack(u, u, A, B, B, seq_map=seq_map)

    def mix(seq_map):
        return block(x, seq_map)

    def hooked(function, hooks):
        def call(seq_map):
            with hooks():
                return function(seq_map)
        return call

    copies = functools.partial(torch.autograd.graph.saved_tensors_hooks, torch.clone, lambda kept: kept)
    compiled = torch.compile(mix, backend="aot_eager", fullgraph=True)
    return [("hooks", hooked(scan, torch.autograd.graph.save_on_cpu), scan),
            ("recomputed", lambda seq_map: checkpoint(scan, seq_map, x, use_reentrant=False), scan),
            ("selective", lambda seq_map: checkpoint(mix, seq_map, use_reentrant=False, context_fn=contexts), mix),
            ("compiled", hooked(compiled, torch.autograd.graph.save_on_cpu), mix),  # keeps the handle itself
            ("compiled, copies", hooked(compiled, copies), mix)], x


def test_an_update_before_the_backward_is_refused_on_every_way():
    ways, x = ways_around_versions()
    for name, function, plain in ways:
        expected, = torch.autograd.grad(plain(seq_map_on("cpu")).sum(), x)
        for limits in ({"max_sequences": 7, "max_seqlen": 12}, {}):
            seq_map = seq_map_on("cpu", **limits)
            assert_close(torch.autograd.grad(function(seq_map).sum(), x)[0], expected, name)
            out = function(seq_map).sum()
            seq_map.update(POSITIONS.roll(1, 0))
            if not limits and name in ("hooks", "compiled"):  # they keep the old map, which is another one
                assert_close(torch.autograd.grad(out, x)[0], expected, name)
            else:
                with pytest.raises(packjit.PackjitError, match="updated between"):
                    torch.autograd.grad(out, x)


def test_a_map_is_updated_inside_a_compiled_function(device):
    from torch._dynamo.testing import CompileCounterWithBackend
    counter = CompileCounterWithBackend("aot_eager")
    seq_map, given = seq_map_on(device, max_sequences=7, max_seqlen=12), conv_inputs(device)

    @functools.partial(torch.compile, backend=counter, fullgraph=True)
    def convolve(positions):
        seq_map.update(positions)
        return pt.conv1d_pack(**given, seq_map=seq_map)

    for positions in (POSITIONS, POSITIONS.roll(1, 0), torch.arange(SEQLEN).repeat(BATCH, 1)):
        positions = positions.to(device)
        expected = pt.conv1d_pack(**given, seq_map=pt.SequenceMap.from_position_indices(positions, 7, 12))
        assert torch.equal(convolve(positions), expected)
        assert torch.equal(pt.conv1d_pack(**given, seq_map=seq_map), expected)
    assert counter.frame_count == 1


def test_a_map_is_made_and_updated_inside_a_compiled_function(device):
    def convolve(first, second, x, weight, bias):
        seq_map = pt.SequenceMap.from_position_indices(first, 7, 12)
        seq_map.update(second)
        return pt.conv1d_pack(x, weight, bias, seq_map=seq_map)

    whole, second = torch.arange(SEQLEN).repeat(BATCH, 1).to(device), POSITIONS.to(device)
    results = []
    for function in (convolve, torch.compile(convolve, backend="aot_eager", fullgraph=True)):
        given = conv_inputs(device)
        out = function(whole, second, **given)
        out.sum().backward()
        results.append([out, *[tensor.grad for tensor in given.values()]])
    assert all(torch.equal(*pair) for pair in zip(*results))
    assert torch.equal(results[0][0], pt.conv1d_pack(**conv_inputs(device), seq_map=seq_map_on(device)))


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


@pytest.mark.gpu
def test_tensors_on_another_device_than_the_map():
    if not torch.cuda.is_available():
        pytest.skip("no GPU that PyTorch can use")
    with pytest.raises(packjit.BadArgument, match="the SequenceMap is for|made with another device"):
        pt.ssm_pack(**ssm_inputs("cuda"), seq_map=seq_map_on("cpu"))


def test_maps_are_not_copied():
    seq_map = seq_map_on("cpu")
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            copied(seq_map.handle._packjit_map)
    module = torch.nn.Linear(2, 2)
    module.seq_map = seq_map
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        copy.deepcopy(module)


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
    with pytest.raises(packjit.BadArgument, match=r"position_indices: it is a list, expected a tensor \(batch, seqlen"):
        pt.SequenceMap.from_position_indices([[0, 1]])
    with pytest.raises(packjit.BadArgument, match="max_sequences is 0 and max_seqlen is 0, expected 1 or more"):
        pt.SequenceMap.from_position_indices(torch.arange(8)[None], max_sequences=0, max_seqlen=0)


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
