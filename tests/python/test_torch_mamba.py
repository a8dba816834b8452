"""The packed model is the same model as one run sequence by sequence: logits, loss and every gradient."""

import io
import math
import re
import types

import pytest

torch = pytest.importorskip("torch")

import references  # noqa: E402
from packed_models import (CONFIG, Adapter, assert_close, error, gradients_of, model_of, own_logits,  # noqa: E402
                           positions_of, random_rows, real_rows, run_one_at_a_time, run_packed, tokens_of)

from packjit.errors import BadArgument, PackjitError  # noqa: E402
from packjit.torch import CONFIGURATIONS, Mamba, MambaConfig, MambaLM, SequenceMap, next_token_targets  # noqa: E402
from packjit.torch import mamba_inner  # noqa: E402

FP32_BOUND = 1e-5
BF16_BOUND = 2e-2  # an operator may be off by 4e-3 (docs/design.md, Numbers); two layers of four each add up
WAYS = pytest.mark.parametrize("rows", [random_rows, real_rows])


@WAYS
def test_packed_equals_one_at_a_time_in_fp32(rows, device):
    positions, model = rows().to(device), model_of().to(device)
    ids = tokens_of(positions)
    assert_close(run_packed(model, ids, positions), run_one_at_a_time(own_logits(model), model, ids, positions),
                 FP32_BOUND)


@WAYS
def test_packed_equals_one_at_a_time_in_bf16(rows, device):
    positions, model = rows().to(device), model_of().to(device)
    ids = tokens_of(positions)
    exact = run_packed(model, ids, positions)
    packed = run_packed(model, ids, positions, bf16=True)
    single = run_one_at_a_time(own_logits(model), model, ids, positions, bf16=True)
    assert_close(packed, single, BF16_BOUND)
    for name, gradient in packed[2].items():  # packing must not cost precision
        assert error(gradient, exact[2][name]) <= 1.5 * error(single[2][name], exact[2][name]) + 4e-3, name


def test_packed_equals_the_recurrence(monkeypatch):
    """Operators written out in fp64 instead of packjit's; the rest of the model is the same."""
    positions, model = random_rows(), model_of()
    ids = tokens_of(positions)
    found = run_packed(model, ids, positions)

    def conv1d_pack(x, weight, bias, *, seq_map):
        return references.conv1d(x.double(), weight.double(), bias.double(), positions, "silu")[0].float()

    def ssm_pack(*tensors, seq_map, checkpoints):
        return references.ssm(*[tensor.double() for tensor in tensors], positions, True)[0].float()

    monkeypatch.setattr(mamba_inner.ops, "is_plain", lambda *tensors: False)
    monkeypatch.setattr(mamba_inner, "conv1d_pack", conv1d_pack)
    monkeypatch.setattr(mamba_inner, "ssm_pack", ssm_pack)
    assert_close(found, run_packed(model, ids, positions), FP32_BOUND)


@pytest.mark.parametrize("way", ["is_grads_batched", "vmap"])
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("conv_bias", [False, True])
def test_gradients_of_a_batch_of_outputs_of_the_block(way, checkpoints, conv_bias, device):
    torch.manual_seed(0)
    block = Mamba(8, d_state=2, conv_bias=conv_bias).to(device)
    hidden = torch.randn(1, 8, 8, device=device, requires_grad=True)
    positions = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2]], device=device)
    inputs = hidden, *block.parameters()
    out = block(hidden, position_indices=positions, checkpoints=checkpoints)
    douts = torch.randn(3, *out.shape, device=device)

    def gradients(dout, **how):
        return torch.autograd.grad(out, inputs, dout, retain_graph=True, **how)

    found = gradients(douts, is_grads_batched=True) if way == "is_grads_batched" else torch.func.vmap(gradients)(douts)
    for batched, each in zip(found, zip(*map(gradients, douts))):
        assert error(batched, torch.stack(each)) <= FP32_BOUND


def test_a_sequence_sees_no_other(device):
    positions, model = random_rows().to(device), model_of().to(device)
    ids = tokens_of(positions)
    with torch.no_grad():
        before = model(ids, position_indices=positions)
        changed = ids.clone()
        changed[0, 8:19] = (changed[0, 8:19] + 1) % CONFIG.vocab_size  # the third sequence of the first row
        after = model(changed, position_indices=positions)
    same = torch.ones_like(positions, dtype=torch.bool)
    same[0, 8:19] = False
    assert torch.equal(before[same], after[same])
    assert not torch.equal(before[~same], after[~same])


def test_boundary_forms_give_the_same_bits():
    positions, model = positions_of([[5, 3, 8], [16]], 16), model_of()
    ids = tokens_of(positions)
    with torch.no_grad():
        logits = [model(ids, position_indices=positions),
                  model(ids, cu_seqlens=torch.tensor([0, 5, 8, 16, 32])),
                  model(ids, seq_idx=torch.tensor([[4] * 5 + [1] * 3 + [2] * 8, [0] * 16])),
                  model(ids, SequenceMap.from_position_indices(positions, max_sequences=7, max_seqlen=16))]
    for other in logits[1:]:
        assert torch.equal(logits[0], other)


def test_second_derivatives_are_refused():
    """Of frozen layers among them, where nothing behind the block depends on what it is given."""
    seq_map, hidden = SequenceMap.from_position_indices(positions_of([[5, 3]], 8)), torch.randn(1, 8, 16)
    hidden.requires_grad_()
    for frozen in (False, True):
        block = Mamba(16).requires_grad_(not frozen)
        with pytest.raises(PackjitError, match="double backward is not supported"):
            torch.autograd.grad(block(hidden, seq_map).sum(), hidden, create_graph=True)
        with pytest.raises(PackjitError, match="double backward is not supported"):
            torch.autograd.functional.hessian(lambda given: block(given, seq_map).pow(2).sum(), hidden)


def test_one_map_serves_batch_after_batch():
    model, first, second = model_of(), random_rows(), positions_of([[24], [20]], 24)
    seq_map = SequenceMap.from_position_indices(first, max_sequences=8, max_seqlen=24)
    seq_map.update(second)
    ids = tokens_of(second)
    with torch.no_grad():
        assert torch.equal(model(ids, seq_map)[second >= 0], model(ids, position_indices=second)[second >= 0])


def test_checkpoints_and_residuals_in_bf16_change_little():
    positions = random_rows()
    ids = tokens_of(positions)
    model = model_of()
    plain = run_packed(model, ids, positions)
    model.checkpoints = True
    assert_close(run_packed(model, ids, positions), plain, FP32_BOUND)
    model.checkpoints, model.config = False, MambaConfig(16, 2, 29, residual_in_fp32=False)
    assert_close(run_packed(model, ids, positions, bf16=True), plain, 5 * BF16_BOUND)


def test_compiled_model_equals_eager(device):
    """Traced without a break; on the CPU, where a compile takes a minute, what was traced then runs as it is."""
    positions, model = random_rows().to(device), model_of().to(device)
    ids = tokens_of(positions)
    targets, weights = next_token_targets(ids, positions)
    expected = run_packed(model, ids, positions)
    traced = torch.compile(model, fullgraph=True, backend="aot_eager" if device.type == "cpu" else "inductor")
    model.zero_grad()
    seq_map = SequenceMap.from_position_indices(positions)
    loss = traced(ids, seq_map, targets=targets, weights=weights) / weights.sum()
    loss.backward()
    assert_close((expected[0], loss.detach(), gradients_of(model)), expected, FP32_BOUND)


def test_state_dict_has_the_official_names_and_shapes():
    names = {"A_log": (32, 16), "D": (32,), "in_proj.weight": (64, 16), "conv1d.weight": (32, 1, 4),
             "conv1d.bias": (32,), "x_proj.weight": (33, 32), "dt_proj.weight": (32, 1), "dt_proj.bias": (32,),
             "out_proj.weight": (16, 32)}
    expected = {"backbone.embedding.weight": (32, 16), "backbone.norm_f.weight": (16,), "lm_head.weight": (32, 16)}
    for layer in range(2):
        expected[f"backbone.layers.{layer}.norm.weight"] = (16,)
        expected.update({f"backbone.layers.{layer}.mixer.{name}": shape for name, shape in names.items()})
    model = model_of()
    assert {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()} == expected
    other = model_of(seed=5)
    other.load_state_dict(model.state_dict(), strict=True)
    ids = torch.arange(6)[None]
    with torch.no_grad():
        assert torch.equal(own_logits(model)(ids), own_logits(other)(ids))
    assert other.lm_head.weight is other.backbone.embedding.weight


def test_official_model_takes_and_gives_the_state_dict():
    official = pytest.importorskip("mamba_ssm.models.mixer_seq_simple", reason="mamba_ssm is missing")
    from mamba_ssm.models.config_mamba import MambaConfig as OfficialConfig
    theirs = official.MambaLMHeadModel(OfficialConfig(d_model=16, n_layer=2, vocab_size=29,
                                                      ssm_cfg={"layer": "Mamba1"}))
    ours = model_of()
    theirs.load_state_dict(ours.state_dict(), strict=True)
    ours.load_state_dict(theirs.state_dict(), strict=True)


def test_initial_values():
    torch.manual_seed(0)
    block = Mamba(256, dt_min=0.001, dt_max=0.1)
    assert torch.equal(block.A_log[7], torch.log(torch.arange(1.0, 17.0)))
    assert torch.equal(block.D, torch.ones(512))
    dt = torch.nn.functional.softplus(block.dt_proj.bias)
    assert 0.00099 < dt.min() < 0.0012 and 0.085 < dt.max() < 0.101
    assert abs(dt.log().mean().item() - math.log(0.01)) < 0.2  # evenly in log
    assert 0.95 * 16 ** -0.5 < block.dt_proj.weight.abs().max() <= 16 ** -0.5
    half = Mamba(16, dtype=torch.bfloat16)
    assert half.A_log.dtype == half.D.dtype == torch.float32 and half.in_proj.weight.dtype == torch.bfloat16
    model = MambaLM(MambaConfig(64, 4))
    assert 0.0195 < model.backbone.embedding.weight.std() < 0.0205
    largest = model.backbone.layers[0].mixer.out_proj.weight.abs().max().item()
    assert 0.95 < largest / (128 ** -0.5 / math.sqrt(4)) <= 1.0


@pytest.mark.parametrize("size,count", [("130m", 129_135_360), ("1.4b", 1_372_178_432), ("2.8b", 2_768_345_600)])
def test_published_sizes(size, count):
    model = MambaLM(CONFIGURATIONS[size], device="meta")
    assert sum(parameter.numel() for parameter in model.parameters()) == count


def test_bad_calls_are_refused():
    model, ids = model_of(), torch.zeros(1, 4, dtype=torch.int64)
    with pytest.raises(ValueError, match="0 of seq_map, position_indices, cu_seqlens and seq_idx were given"):
        model(ids)
    with pytest.raises(ValueError, match="2 of seq_map"):
        model(ids, position_indices=ids, seq_idx=ids)
    with pytest.raises(ValueError, match="targets and weights come together"):
        model(ids, seq_idx=ids, targets=ids)
    with pytest.raises(ValueError, match="dt_init is 'other'"):
        Mamba(16, dt_init="other")


def inner_parts():
    """(dim 8, width 4, dt_rank 1, d_state 4): what mamba_inner takes behind xz"""
    torch.manual_seed(1)
    return [torch.randn(8, 4), torch.randn(8), torch.randn(1 + 2 * 4, 8), torch.randn(8, 1), -torch.rand(8, 4),
            torch.randn(8), torch.randn(8)]


def test_fp32_activations_under_autocast():
    """They go to autocast's dtype in the fused block as in the separate operators."""
    torch.manual_seed(0)
    block, hidden, seq_map = Mamba(16), torch.randn(1, 12, 16), SequenceMap.rows(1, 12, torch.device("cpu"))
    block.in_proj.register_forward_hook(lambda module, given, out: out.float())
    with torch.autocast("cpu", torch.bfloat16):
        eager, compiled = block(hidden, seq_map), torch.compile(block, backend="eager")(hidden, seq_map)
    assert eager.dtype is compiled.dtype is torch.bfloat16
    assert error(eager, compiled) < BF16_BOUND


def test_a_backward_inside_autocast_has_the_dtypes_of_its_forward():
    parts, seq_map, gradients = inner_parts(), SequenceMap.rows(2, 12, torch.device("cpu")), []
    for inside in (False, True):
        xz = torch.randn(2, 12, 16, generator=torch.Generator().manual_seed(2)).requires_grad_()
        loss = mamba_inner.mamba_inner(xz, *parts, seq_map).square().sum()
        with torch.autocast("cpu", torch.bfloat16, enabled=inside):
            loss.backward()
        gradients.append(xz.grad)
    assert torch.equal(*gradients)


def test_a_channel_major_projection():
    parts, seq_map, gradients = inner_parts(), SequenceMap.rows(2, 12, torch.device("cpu")), []
    turned = torch.randn(2, 16, 12).transpose(1, 2)
    for xz in (turned.clone(memory_format=torch.preserve_format), turned.contiguous()):
        xz.requires_grad_()
        mamba_inner.mamba_inner(xz, *parts, seq_map).square().sum().backward()
        gradients.append(xz.grad)
    assert error(*gradients) < FP32_BOUND


def test_the_head_stays_the_embedding():
    config = MambaConfig(d_model=16, n_layer=1, vocab_size=32)
    model = MambaLM(config)
    for other in (MambaLM(config, device="meta"), MambaLM(config, device="meta").to_empty(device="cpu")):
        other.load_state_dict(model.state_dict(), assign=True)
        assert other.lm_head.weight is other.backbone.embedding.weight
        assert len(list(other.parameters())) == len(list(model.parameters()))
    assert model.bfloat16().lm_head.weight is model.backbone.embedding.weight


def small_block(seed=0, **options):
    torch.manual_seed(seed)
    return Mamba(8, d_state=2, dt_rank=3, **options)


def run_block(block):
    """Output and the gradient of what the block is given, for two sequences of 5 and 3 tokens."""
    drawn = torch.Generator().manual_seed(4)
    dtype = block.in_proj.weight.dtype
    hidden = torch.randn(1, 8, 8, generator=drawn).to(dtype).requires_grad_()
    out = block(hidden, position_indices=torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2]]))
    out.backward(torch.randn(out.shape, generator=drawn).to(dtype))
    return out.detach(), hidden.grad


def assert_same(block, other):
    for found, expected in zip(run_block(block), run_block(other)):
        assert error(found, expected) < FP32_BOUND


@pytest.mark.parametrize("name", ["in_proj", "x_proj", "dt_proj", "out_proj"])
def test_an_adapter_around_a_projection_works_and_learns(name):
    block, merged = small_block(), small_block()
    adapter = Adapter(getattr(block, name))
    setattr(block, name, adapter)
    setattr(merged, name, adapter.merged())
    assert_same(block, merged)
    dweight = getattr(merged, name).weight.grad
    assert error(adapter.up.grad, dweight @ adapter.down.detach().t()) < FP32_BOUND
    assert error(adapter.base_layer.weight.grad, dweight) < FP32_BOUND
    assert error(block.dt_proj.bias.grad, merged.dt_proj.bias.grad) < FP32_BOUND


def own_forward(layer):
    plain = layer.forward
    layer.forward = lambda given: plain(2 * given)


@pytest.mark.parametrize("way", [
    lambda layer: layer.register_forward_hook(lambda module, given, out: 2 * out),
    lambda layer: layer.register_forward_pre_hook(lambda module, given: (2 * given[0],)), own_forward])
def test_hooks_of_a_projection_are_called(way):
    block, doubled = small_block(), small_block()
    way(block.x_proj)
    with torch.no_grad():
        doubled.x_proj.weight *= 2
    assert_same(block, doubled)


def test_backward_hooks_of_a_projection_are_called():
    block, seen = small_block(), []
    block.dt_proj.register_full_backward_hook(lambda module, dgiven, dout: seen.append(dout[0].shape))
    assert_same(block, small_block())
    assert seen == [(1, 8, 16)]


def test_biases_of_projections():
    """One of x_proj is, for dt, one of dt_proj; a dt_proj without is one with zeros."""
    block, other = small_block(), small_block()
    block.x_proj = torch.nn.Linear(16, 7)
    with torch.no_grad():
        block.x_proj.weight.copy_(other.x_proj.weight)
        block.x_proj.bias.copy_(torch.tensor([0.5, -1.0, 0.25, 0, 0, 0, 0]))
        other.dt_proj.bias += other.dt_proj.weight @ torch.tensor([0.5, -1.0, 0.25])
    assert_same(block, other)
    block, other = small_block(), small_block()
    block.dt_proj.bias = None
    torch.nn.init.zeros_(other.dt_proj.bias)
    assert_same(block, other)


def test_a_projection_may_give_another_dtype():
    block, plain = small_block(dtype=torch.bfloat16), small_block(dtype=torch.bfloat16)
    for layer in (block.x_proj, block.dt_proj):
        layer.register_forward_hook(lambda module, given, out: out.float())
    for found, expected in zip(run_block(block), run_block(plain)):
        assert found.dtype is torch.bfloat16 and error(found, expected) < BF16_BOUND


class Doubled(torch.nn.Module):
    def forward(self, weight):
        return 2 * weight


def test_parametrized_layers_stay_fused(monkeypatch):
    monkeypatch.delattr("packjit.torch.mamba.separately")
    block, doubled = small_block(), small_block()
    for name in ("conv1d", "x_proj", "dt_proj"):
        torch.nn.utils.parametrize.register_parametrization(getattr(block, name), "weight", Doubled())
        with torch.no_grad():
            getattr(doubled, name).weight *= 2
    assert_same(block, doubled)


def test_layers_that_accelerate_moves_stay_fused(monkeypatch):
    """What its hooks for a device_map look like; with offloading weights are elsewhere until the layer is called."""
    block = small_block()
    for layer in (block.conv1d, block.x_proj, block.dt_proj):
        layer.forward, layer._hf_hook = layer.forward, types.SimpleNamespace(offload=False)
    with monkeypatch.context() as patched:
        patched.delattr("packjit.torch.mamba.separately")
        assert_same(block, small_block())
    block.conv1d._hf_hook.offload = True
    with pytest.raises(BadArgument, match="conv1d is a Conv1d with a forward or hooks of its own"):
        run_block(block)


def test_a_convolution_that_is_more_is_refused():
    class Adapted(torch.nn.Conv1d):
        def forward(self, given):
            return 2 * super().forward(given)

    block = small_block()
    block.conv1d = Adapted(16, 16, 4, groups=16, padding=3)
    with pytest.raises(BadArgument, match="conv1d is a Adapted with a forward .* Leave conv1d out of what is adapted"):
        run_block(block)
    block = small_block()
    block.conv1d.register_forward_hook(lambda module, given, out: 2 * out)
    with pytest.raises(BadArgument, match="conv1d is a Conv1d with .* remove its hooks"):
        run_block(block)


def run_loss(model):
    """Loss and gradients with weights of 0.5 to 2.5, and nothing to predict at the fourth token."""
    ids = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
    targets, weights = ids.flip(1), torch.arange(1, 11).view(2, 5) / 4 + 0.25
    targets[0, 3] = -100
    loss = model(ids, SequenceMap.rows(2, 5, ids.device), targets=targets, weights=weights)
    loss.backward()
    return loss.detach(), model.backbone.norm_f.weight.grad, model.backbone.layers[0].mixer.A_log.grad


def test_an_adapter_around_the_head_works_and_learns():
    model, merged, plain = model_of(), model_of(), model_of()
    adapter = model.lm_head = Adapter(model.lm_head)
    merged.lm_head = adapter.merged()
    expected = run_loss(merged)
    assert all(error(*pair) < FP32_BOUND for pair in zip(run_loss(model), expected))
    assert error(run_loss(plain)[0], expected[0]) > 0.1
    assert error(adapter.up.grad, merged.lm_head.weight.grad @ adapter.down.detach().t()) < FP32_BOUND


def test_a_bias_and_hooks_of_the_head_count():
    model, hooked, plain = model_of(), model_of(), model_of()
    bias = torch.linspace(-1, 1, 32)
    model.lm_head.bias = torch.nn.Parameter(bias)
    hooked.lm_head.register_forward_hook(lambda module, given, out: out + bias)
    expected = run_loss(hooked)
    assert all(error(*pair) < FP32_BOUND for pair in zip(run_loss(model), expected))
    assert error(run_loss(plain)[0], expected[0]) > 0.01


def test_the_layer_inside_an_adapter_stays_the_embedding():
    for device in ("cpu", "meta"):
        model, other = model_of(), MambaLM(CONFIG, device=device)
        for each in (model, other):
            each.lm_head = Adapter(each.lm_head)
        assert model.to("cpu").bfloat16().lm_head.weight is model.backbone.embedding.weight
        assert other.to_empty(device="cpu").lm_head.weight is other.backbone.embedding.weight
        other.load_state_dict(model.state_dict(), assign=True)
        assert other.lm_head.weight is other.backbone.embedding.weight
        assert torch.equal(other.lm_head.weight, model.lm_head.weight)
        other.tie_weights()


def test_a_head_with_a_weight_of_its_own_keeps_it():
    model, other = model_of(), model_of()
    for each in (model, other):
        each.lm_head = torch.nn.Linear(16, 32, bias=False)
    own = model.lm_head.weight.detach().clone()
    assert torch.equal(model.to("cpu").lm_head.weight, own)
    other.load_state_dict(model.state_dict(), assign=True)
    assert torch.equal(other.lm_head.weight, own) and not torch.equal(other.backbone.embedding.weight, own)
    other.tie_weights()
    assert other.lm_head.weight is other.backbone.embedding.weight


def test_a_saved_model_is_the_same_and_stays_tied():
    model, file, ids = model_of(), io.BytesIO(), torch.arange(6)[None]
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    with torch.no_grad():
        assert torch.equal(own_logits(loaded)(ids), own_logits(model)(ids))
    assert loaded.lm_head.weight is loaded.backbone.embedding.weight is not model.lm_head.weight
    other = model_of(seed=5)
    loaded.load_state_dict(other.state_dict(), assign=True)
    assert torch.equal(loaded.lm_head.weight, other.lm_head.weight)
    assert loaded.bfloat16().lm_head.weight is loaded.backbone.embedding.weight


@pytest.mark.parametrize("shape", [(3, 2), (6,), (1, 6)])
@pytest.mark.parametrize("name", ["targets", "weights"])
def test_targets_and_weights_of_another_shape_are_refused(name, shape):
    """The number of elements alone says nothing: those of a transposed batch belong to other tokens."""
    ids = torch.zeros(2, 3, dtype=torch.int64)
    given = {"targets": ids, "weights": torch.ones(2, 3)}
    given[name] = given[name].reshape(shape)
    expected = f"{name} has shape {shape}, expected input_ids' (batch, seqlen), (2, 3)"
    with pytest.raises(BadArgument, match=re.escape(expected)):
        model_of()(ids, SequenceMap.rows(2, 3, ids.device), **given)
