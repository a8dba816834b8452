"""linear_cross_entropy and the fused norm against PyTorch's own functions."""

import math

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from packjit.errors import BadArgument, PackjitError  # noqa: E402
from packjit.torch import linear_cross_entropy, next_token_targets  # noqa: E402
from packjit.torch.fusion import add_rms_norm  # noqa: E402
from packjit.torch.loss import _losses_and_gradient  # noqa: E402

TOKENS, D_MODEL, VOCABULARY = 50, 24, 101


def drawn(dtype=torch.float32):
    torch.manual_seed(3)
    hidden = torch.randn(TOKENS, D_MODEL).to(dtype).requires_grad_()
    weight = (0.2 * torch.randn(VOCABULARY, D_MODEL)).to(dtype).requires_grad_()  # logits of about 1, as bf16 has them
    weights = torch.rand(TOKENS) * (torch.arange(TOKENS) % 7 > 0)
    return hidden, weight, torch.randint(VOCABULARY, (TOKENS,)), weights


def relative(found, expected):
    return ((found.double() - expected.double()).norm() / expected.double().norm()).item()


@pytest.mark.parametrize("chunk", [0, -1])
def test_chunks_of_no_tokens_are_refused(chunk):
    with pytest.raises(BadArgument, match=f"chunk_tokens is {chunk}, expected 1 or more"):
        linear_cross_entropy(*drawn(), chunk)


@pytest.mark.parametrize("chunk", [50, 16, 7])
@pytest.mark.parametrize("dtype,bound", [(torch.float32, 1e-6), (torch.bfloat16, 4e-3)])
def test_loss_and_gradients(chunk, dtype, bound):
    hidden, weight, targets, weights = drawn(dtype)
    loss = linear_cross_entropy(hidden, weight, targets, weights, chunk)
    (loss / 3).backward()
    exact = [tensor.detach().double().requires_grad_() for tensor in (hidden, weight)]
    expected = F.cross_entropy(exact[0] @ exact[1].t(), targets, reduction="none") @ weights.double()
    (expected / 3).backward()
    assert loss.dtype == torch.float32 and abs(loss.item() / expected.item() - 1) < bound
    assert relative(hidden.grad, exact[0].grad) < bound
    assert relative(weight.grad, exact[1].grad) < bound
    with torch.no_grad():
        assert abs(linear_cross_entropy(hidden, weight, targets, weights, chunk).item() / expected.item() - 1) < bound


def test_weight_zero_counts_nothing():
    hidden, weight, targets, weights = drawn()
    linear_cross_entropy(hidden, weight, targets, weights).backward()
    assert torch.equal(hidden.grad[weights == 0], torch.zeros(8, D_MODEL))


def test_no_tensor_is_as_large_as_all_logits():
    class Sizes(TorchDispatchMode):
        largest = 0

        def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
            result = function(*arguments, **(keywords or {}))
            for tensor in result if isinstance(result, (tuple, list)) else [result]:
                if isinstance(tensor, torch.Tensor):
                    Sizes.largest = max(Sizes.largest, tensor.numel())
            return result

    hidden, weight, targets, weights = drawn(torch.bfloat16)
    with Sizes():
        linear_cross_entropy(hidden, weight, targets, weights, chunk_tokens=10).backward()
    assert weight.numel() <= Sizes.largest < TOKENS * VOCABULARY


def test_compiled_pieces_equal_eager():
    """What runs fused on a GPU, through the same compiler on the CPU."""
    hidden, weight, targets, weights = drawn()
    logits = (hidden @ weight.t()).detach()
    loss, gradient = torch.compile(_losses_and_gradient, fullgraph=True)(logits, targets, weights)
    expected_loss, expected_gradient = _losses_and_gradient(logits, targets, weights)
    assert relative(loss, expected_loss) < 1e-6 and relative(gradient, expected_gradient) < 1e-6
    arguments = (hidden.detach(), torch.randn(TOKENS, D_MODEL), torch.rand(D_MODEL), 1e-5, torch.float32)
    for one, other in zip(torch.compile(add_rms_norm, fullgraph=True)(*arguments), add_rms_norm(*arguments)):
        assert relative(one, other) < 1e-6


def test_norm_is_pytorchs():
    torch.manual_seed(0)
    hidden, residual, weight = torch.randn(5, 8, dtype=torch.bfloat16), torch.randn(5, 8), torch.rand(8)
    normed, total = add_rms_norm(hidden, residual, weight, 1e-5, torch.float32)
    assert torch.equal(total, hidden.float() + residual) and normed.dtype == torch.bfloat16
    assert relative(normed, F.rms_norm(total, (8,), weight, 1e-5)) < 4e-3


def test_targets_stay_inside_their_sequence():
    positions = torch.tensor([[0, 1, 2, 0, 0, 1, -1], [0, 1, 2, 3, 4, 5, 6]])
    targets, weights = next_token_targets(torch.arange(1, 15).view(2, 7), positions)
    assert weights.tolist() == [[1, 1, 0, 0, 1, 0, 0], [1, 1, 1, 1, 1, 1, 0]]
    assert targets.tolist() == [[2, 3, 0, 0, 6, 0, 0], [9, 10, 11, 12, 13, 14, 0]]


def test_bad_shapes_are_refused():
    hidden, weight, targets, weights = drawn()
    with pytest.raises(ValueError, match="one target and one weight for each of 50 tokens"):
        linear_cross_entropy(hidden, weight, targets[1:], weights)
    with pytest.raises(ValueError, match=r"was given \(50, 24\) and \(24, 101\)"):
        linear_cross_entropy(hidden, weight.t(), targets, weights)
    with pytest.raises(ValueError, match="hidden is torch.float32 and weight torch.bfloat16"):
        linear_cross_entropy(hidden, weight.bfloat16(), targets, weights)


def test_a_negative_target_is_nothing_to_predict():
    hidden, weight, targets, weights = drawn()
    targets[::3] = -100
    loss = linear_cross_entropy(hidden, weight, targets, torch.ones_like(weights), 16)
    assert relative(loss.detach(), F.cross_entropy(hidden @ weight.t(), targets, reduction="sum").detach()) < 1e-6
    loss.backward()
    assert (hidden.grad[::3] == 0).all() and (hidden.grad[1::3] != 0).any()


@pytest.mark.parametrize("factor", [1.0, torch.tensor(2.0, requires_grad=True)])
def test_second_derivatives_are_refused(factor):
    """What goes through the loss would be missing from a gradient penalty or a Hessian, without a word."""
    hidden, weight, targets, weights = drawn()
    loss = linear_cross_entropy(hidden, weight, targets, weights) * factor
    for further in ({}, {"grad_outputs": torch.ones(2), "is_grads_batched": True}):
        with pytest.raises(PackjitError, match="double backward is not supported"):
            torch.autograd.grad(loss, [hidden, weight], create_graph=True, retain_graph=True, **further)
    with pytest.raises(PackjitError, match="double backward is not supported"):
        torch.autograd.functional.hessian(lambda given: linear_cross_entropy(given, weight, targets, weights), hidden)


def test_no_tokens_are_a_loss_of_zero_with_gradients():
    hidden, weight = torch.ones(0, 4, requires_grad=True), torch.ones(5, 4, requires_grad=True)
    loss = linear_cross_entropy(hidden, weight, torch.zeros(0, dtype=torch.int64), torch.zeros(0))
    loss.backward()
    assert loss.item() == 0 and hidden.grad.shape == (0, 4) and (weight.grad == 0).all()


@pytest.mark.parametrize("chunk", [20_000, 4096])
def test_sums_over_tokens_beyond_fp16_are_divided_first(chunk):
    """Of 20,000 tokens each adds 4.5 to a gradient that is their mean: fp16 ends at 65,504."""
    tokens = 20_000
    hidden, weight = torch.full((tokens, 8), 6.0, dtype=torch.float16), torch.zeros(4, 8, dtype=torch.float16)
    weight.requires_grad_()
    loss = linear_cross_entropy(hidden, weight, torch.zeros(tokens, dtype=torch.int64), torch.ones(tokens), chunk)
    (loss / tokens).backward()
    assert weight.grad.dtype is torch.float16
    assert torch.equal(weight.grad, torch.tensor([-4.5, 1.5, 1.5, 1.5], dtype=torch.float16)[:, None].expand(4, 8))


@pytest.mark.parametrize("chunk", [2, 1])
def test_small_weights_cost_no_precision_in_fp16(chunk):
    """Of logits 0, p is 1/1024; times 2^-17 it is 0 in fp16, and the loss scale comes too late to save it."""
    hidden, weight = torch.tensor([[1.0, 0.0]] * 2).half(), torch.tensor([[0.0, 0.0]] + [[0.0, 1.0]] * 1023).half()
    hidden.requires_grad_(), weight.requires_grad_()
    loss = linear_cross_entropy(hidden, weight, torch.tensor([0, 0]), torch.tensor([2.0**-17, 2.0**-6]), chunk)
    assert abs(loss.item() / (math.log(1024) * (2.0**-17 + 2.0**-6)) - 1) < 1e-6
    (loss * 2.0**16).backward()
    assert torch.equal(hidden.grad, torch.tensor([[0.0, 1023 / 2048], [0.0, 1023.0]]).half())
    expected = torch.tensor([[-1023 / 1024 * 1024.5, 0.0]] + [[1024.5 / 1024, 0.0]] * 1023).half()
    assert torch.equal(weight.grad, expected)


def test_fp16_is_as_exact_as_pytorch_with_a_loss_scale():
    hidden, weight, targets, _ = drawn(torch.float16)
    exact, theirs = ([tensor.detach().to(dtype).requires_grad_() for tensor in (hidden, weight)]
                     for dtype in (torch.float64, torch.float16))
    for h, w in (exact, theirs):
        losses = F.cross_entropy((h @ w.t()).to(torch.promote_types(h.dtype, torch.float32)), targets, reduction="none")
        ((losses * 1e-6).sum() * 2.0**20).backward()
    (linear_cross_entropy(hidden, weight, targets, torch.full((TOKENS,), 1e-6)) * 2.0**20).backward()
    for found, pytorchs, expected in zip((hidden, weight), theirs, exact):
        assert relative(found.grad, expected.grad) < 1.2 * relative(pytorchs.grad, expected.grad) < 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_autocast_rounds_hidden_and_weight_and_nothing_else(dtype):
    """Of 8,192 tokens each adds 8 to a gradient that is their mean: a sum in fp16, as autocast makes, is infinite."""
    hidden, weight = torch.full((8192, 4), 12.0, dtype=dtype), torch.zeros(3, 4, requires_grad=True)
    with torch.autocast("cpu", torch.float16):
        loss = linear_cross_entropy(hidden, weight, torch.zeros(8192, dtype=torch.int64), torch.ones(8192))
        (loss / 8192).backward()
    assert weight.grad.dtype is torch.float32 and loss.dtype is torch.float32
    assert torch.equal(weight.grad, torch.tensor([-8.0, 4.0, 4.0])[:, None].expand(3, 4))


def test_under_autocast_the_loss_is_that_of_its_dtype():
    results = []
    for inside in (True, False):
        hidden, weight, targets, weights = drawn()
        given = (hidden, weight) if inside else (hidden.bfloat16(), weight.bfloat16())
        with torch.autocast("cpu", torch.bfloat16, enabled=inside):
            loss = linear_cross_entropy(*given, targets, weights, 16)
        loss.backward()
        results.append((loss.detach(), hidden.grad, weight.grad))
    assert all(map(torch.equal, *results))
