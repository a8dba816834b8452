"""Next-token loss of a packed batch, without ever holding the logits of all its tokens in fp32."""

from __future__ import annotations

import torch

from packjit.errors import BadArgument
from packjit.torch.arguments import takes_tensors
from packjit.torch.fusion import fused
from packjit.torch.ops import first_derivative

# In fp16 dlogits are those of a token that weighs so much: a probability of 2.4e-7 is a normal number there, and
# dhidden, at most 2 * 256 * max |weight|, stays finite for elements of weight up to 127.
FP16_SCALE = 256.0
CHUNK_TOKENS = 8192  # logits of so many tokens exist at a time: 0.8 GB in bf16 with 50,280 tokens in the vocabulary


@takes_tensors
def next_token_targets(input_ids: torch.Tensor, position_indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What each token has to predict, and whether it counts.

    input_ids: (batch, seqlen) integers; position_indices: (batch, seqlen), the place of each token in its sequence,
    negative for padding. Gives targets (batch, seqlen) int64 and weights (batch, seqlen) fp32: a token's target is the
    next one of its own sequence. The last token of a sequence has none, and like padding weighs 0; its target is 0.
    """
    if input_ids.dim() != 2 or position_indices.shape != input_ids.shape:
        raise BadArgument(f"next_token_targets takes input_ids and position_indices (batch, seqlen), and was given "
                          f"{tuple(input_ids.shape)} and {tuple(position_indices.shape)}")
    positions = position_indices.to(torch.int64)
    weights = torch.zeros(input_ids.shape, dtype=torch.float32, device=input_ids.device)
    weights[:, :-1] = (positions[:, 1:] == positions[:, :-1] + 1) & (positions[:, :-1] >= 0)
    targets = torch.zeros(input_ids.shape, dtype=torch.int64, device=input_ids.device)
    targets[:, :-1] = torch.where(weights[:, :-1] > 0, input_ids[:, 1:].to(torch.int64), 0)
    return targets, weights


@takes_tensors
def linear_cross_entropy(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor,
                         chunk_tokens: int = CHUNK_TOKENS, fuse: bool = True) -> torch.Tensor:
    """Sum over tokens of weights[t] * -log softmax(hidden[t] @ weight.T)[targets[t]], a scalar in fp32.

    hidden: (tokens, d_model), weight: (vocabulary, d_model), of one floating dtype; targets: (tokens) int64, negative
    where there is nothing to predict; weights: (tokens) fp32, taken as constants. Logits are computed for
    `chunk_tokens` tokens at a time, and the gradient of hidden and weight with them: the backward only scales both.
    Divide the sum by the sum of the weights of the whole step (all micro-batches, all ranks), not of this call.

    With fp16 the gradient of weight is multiplied and summed in fp32, and weights and the loss's own gradient come to
    the gradients in fp32, before these are rounded once: small weights cost no precision under a loss scale. Elements
    of weight have to be below 128 there. Under autocast hidden and weight go to its dtype, as a Linear's would, and
    nothing else does. fuse: through torch.compile on a GPU.
    """
    if hidden.dim() != 2 or weight.dim() != 2 or hidden.shape[1] != weight.shape[1]:
        raise BadArgument(f"linear_cross_entropy takes hidden (tokens, d_model) and weight (vocabulary, d_model), "
                          f"and was given {tuple(hidden.shape)} and {tuple(weight.shape)}")
    if chunk_tokens < 1:
        raise BadArgument(f"linear_cross_entropy: chunk_tokens is {chunk_tokens}, expected 1 or more")
    if targets.shape != hidden.shape[:1] or weights.shape != hidden.shape[:1]:
        raise BadArgument(f"linear_cross_entropy takes one target and one weight for each of {hidden.shape[0]} tokens, "
                          f"and was given {tuple(targets.shape)} and {tuple(weights.shape)}")
    device_type = hidden.device.type
    if device_type in ("cpu", "cuda") and torch.is_autocast_enabled(device_type):
        dtype = torch.get_autocast_dtype(device_type)
        with torch.autocast(device_type, enabled=False):
            return linear_cross_entropy(hidden.to(dtype), weight.to(dtype), targets, weights, chunk_tokens, fuse)
    if hidden.dtype != weight.dtype:
        raise BadArgument(f"linear_cross_entropy: hidden is {hidden.dtype} and weight {weight.dtype}: convert one of "
                          "them")
    weights = weights.detach().float().masked_fill(targets < 0, 0)
    return _LinearCrossEntropy.apply(hidden, weight, targets.clamp(min=0), weights, chunk_tokens, fuse,
                                     torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad))


def _losses(logits: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    values = logits.float()
    chosen = values.gather(1, targets[:, None])[:, 0]
    return ((torch.logsumexp(values, dim=1) - chosen) * weights).sum()


def _losses_and_gradient(logits: torch.Tensor, targets: torch.Tensor,
                         weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Also dlogits = weights * (softmax(logits) - one_hot(targets)), in the logits' dtype; in fp16 with FP16_SCALE for
    the weights, since small ones would leave nothing of it."""
    values = logits.float()
    log_sum = torch.logsumexp(values, dim=1, keepdim=True)
    chosen = values.gather(1, targets[:, None])
    loss = ((log_sum - chosen)[:, 0] * weights).sum()
    is_target = torch.arange(logits.shape[1], device=logits.device) == targets[:, None]
    factor = FP16_SCALE if logits.dtype is torch.float16 else weights[:, None]
    return loss, ((torch.exp(values - log_sum) - is_target.float()) * factor).to(logits.dtype)


def _scaled(tensor: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """In fp32: a factor rounded to bf16 would be wrong by up to 0.4 %, in one direction, in every gradient."""
    return (tensor.float() * factor).to(tensor.dtype)


_fused_scaled = fused(_scaled)
_fused_losses = fused(_losses)
_fused_losses_and_gradient = fused(_losses_and_gradient)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, targets, weights, chunk_tokens, fuse, with_gradient):
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        if not with_gradient:  # ctx.needs_input_grad is true under no_grad too
            count = _fused_losses if fuse else _losses
            for begin in range(0, hidden.shape[0], chunk_tokens):
                part = slice(begin, begin + chunk_tokens)
                loss = loss + count(hidden[part] @ weight.t(), targets[part], weights[part])
            return loss

        count = _fused_losses_and_gradient if fuse else _losses_and_gradient
        dhidden = torch.empty_like(hidden)
        # The sum over tokens is divided by their number only later: fp16 ends at 65,504.
        wide, owed = weight.dtype, None
        if wide is torch.float16:
            wide, owed = torch.float32, weights[:, None] / FP16_SCALE  # what dlogits lack
        dweight = torch.zeros_like(weight) if hidden.shape[0] == 0 else None
        for begin in range(0, hidden.shape[0], chunk_tokens):
            part = slice(begin, begin + chunk_tokens)
            part_loss, dlogits = count(hidden[part] @ weight.t(), targets[part], weights[part])
            loss = loss + part_loss
            dhidden[part] = dlogits @ weight
            rows = hidden[part] if owed is None else hidden[part] * owed[part]
            part_dweight = dlogits.t().to(wide) @ rows
            if hidden.shape[0] <= chunk_tokens:
                dweight = part_dweight
            else:  # chunks are added up in fp32
                dweight = part_dweight.float() if dweight is None else dweight.add_(part_dweight)
        ctx.fuse, ctx.dtype = fuse, weight.dtype
        ctx.save_for_backward(dhidden, dweight.to(wide), owed)
        return loss

    @staticmethod
    @first_derivative("the gradient of linear_cross_entropy")
    def backward(ctx, dloss):
        dhidden, dweight, owed = ctx.saved_tensors
        scale = _fused_scaled if ctx.fuse else _scaled
        return (scale(dhidden, dloss if owed is None else dloss * owed), scale(dweight, dloss).to(ctx.dtype), None,
                None, None, None, None)
