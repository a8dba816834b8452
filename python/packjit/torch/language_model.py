"""A Mamba language model for packed batches, with the parameters of the official MambaLMHeadModel."""

from __future__ import annotations

import dataclasses
import math

import torch
import torch.nn.functional as F
from torch import nn

from packjit.errors import BadArgument
from packjit.torch.fusion import add_rms_norm, fused_add_rms_norm
from packjit.torch.loss import CHUNK_TOKENS, linear_cross_entropy
from packjit.torch.mamba import Mamba, as_sequence_map, is_plain
from packjit.torch.sequence_map import SequenceMap


@dataclasses.dataclass(frozen=True)
class MambaConfig:
    """Sizes of a model. vocab_size is rounded up to a multiple of pad_vocab_size_multiple. residual_in_fp32: what
    layers add up is kept in fp32; otherwise in the parameters' dtype, which moves fewer bytes and rounds more."""

    d_model: int
    n_layer: int
    vocab_size: int = 50277
    d_state: int = 16
    d_conv: int = 4
    expand: int = 2
    dt_rank: int | str = "auto"
    pad_vocab_size_multiple: int = 8
    norm_epsilon: float = 1e-5
    residual_in_fp32: bool = True

    @property
    def padded_vocab_size(self) -> int:
        return -(-self.vocab_size // self.pad_vocab_size_multiple) * self.pad_vocab_size_multiple


CONFIGURATIONS = {  # the published sizes
    "130m": MambaConfig(768, 24),
    "370m": MambaConfig(1024, 48),
    "790m": MambaConfig(1536, 48),
    "1.4b": MambaConfig(2048, 48),
    "2.8b": MambaConfig(2560, 64),
}


class RMSNorm(nn.Module):
    """The weight of a norm, (d_model); the norm itself is computed together with the addition before it."""

    def __init__(self, d_model: int, eps: float, device=None, dtype=None):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model, device=device, dtype=dtype))

    def forward(self, hidden: torch.Tensor, residual: torch.Tensor | None, residual_dtype: torch.dtype,
                fuse: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
        """The norm of hidden + residual as hidden, (batch, seqlen, d_model), and that sum as residual, (tokens,
        d_model)."""
        norm = fused_add_rms_norm if fuse else add_rms_norm
        normed, total = norm(hidden.reshape(-1, hidden.shape[-1]), residual, self.weight, self.eps, residual_dtype)
        return normed.view(hidden.shape), total


class Block(nn.Module):
    """norm, then mixer; the sum of all mixers so far goes along as the residual."""

    def __init__(self, config: MambaConfig, layer_idx: int, device=None, dtype=None):
        super().__init__()
        self.norm = RMSNorm(config.d_model, config.norm_epsilon, device, dtype)
        self.mixer = Mamba(config.d_model, config.d_state, config.d_conv, config.expand, config.dt_rank,
                           layer_idx=layer_idx, device=device, dtype=dtype)

    def forward(self, hidden: torch.Tensor, residual: torch.Tensor | None, residual_dtype: torch.dtype,
                seq_map: SequenceMap, checkpoints: bool, fuse: bool) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, residual = self.norm(hidden, residual, residual_dtype, fuse)
        return self.mixer(hidden, seq_map, checkpoints=checkpoints), residual


class Backbone(nn.Module):
    """Embedding, blocks and the last norm."""

    def __init__(self, config: MambaConfig, device=None, dtype=None):
        super().__init__()
        self.embedding = nn.Embedding(config.padded_vocab_size, config.d_model, device=device, dtype=dtype)
        self.layers = nn.ModuleList(Block(config, index, device, dtype) for index in range(config.n_layer))
        self.norm_f = RMSNorm(config.d_model, config.norm_epsilon, device, dtype)


def _tie_after_load(model: MambaLM, _) -> None:  # by this name the model can be pickled
    model.tie_weights(model.__dict__.pop("_tied_before"))


class MambaLM(nn.Module):
    """Embedding, `n_layer` blocks of RMSNorm and Mamba, a norm, and a head that shares the embedding's weight.

    State-dict names and shapes are those of mamba_ssm's MambaLMHeadModel. Attributes that may be changed at any time:
    `checkpoints` (the scan keeps states for its backward: 8 bytes an element more, faster), `fuse` (norms and the loss
    through torch.compile on a GPU), `chunk_tokens` (tokens whose logits exist at a time).
    """

    def __init__(self, config: MambaConfig, device: torch.device | str | None = None, dtype: torch.dtype | None = None,
                 checkpoints: bool = False, fuse: bool = True):
        super().__init__()
        self.config, self.checkpoints, self.fuse, self.chunk_tokens = config, checkpoints, fuse, CHUNK_TOKENS
        self.backbone = Backbone(config, device, dtype)
        self.lm_head = nn.Linear(config.d_model, config.padded_vocab_size, bias=False, device="meta", dtype=dtype)
        self.tie_weights()
        self.register_load_state_dict_post_hook(_tie_after_load)
        self._init_weights()

    def tie_weights(self, heads: list[nn.Module] | None = None) -> None:
        """Makes the embedding's weight that of the head too, unless the head has none of its own, as an adapter. What
        may replace parameters does it with the `heads` that were tied: to_empty(), load_state_dict() with assign=True.
        """
        for head in [self.lm_head] if heads is None else heads:
            if "weight" in head._parameters:
                head.weight = self.backbone.embedding.weight

    def _tied(self) -> list[nn.Module]:
        """The head, or the layer inside an adapter; nothing, where the head was given a weight of its own."""
        shared = self.backbone.embedding.weight
        return [module for module in self.lm_head.modules() if module._parameters.get("weight") is shared]

    def _apply(self, *arguments, **named):
        tied = self._tied()
        super()._apply(*arguments, **named)
        self.tie_weights(tied)
        return self

    def _load_from_state_dict(self, *arguments, **named):  # called before its parts load
        self._tied_before = self._tied()
        super()._load_from_state_dict(*arguments, **named)

    @torch.no_grad()
    def _init_weights(self) -> None:
        """As the official model does: the embedding narrow, what adds to the residual smaller with more layers."""
        nn.init.normal_(self.backbone.embedding.weight, std=0.02)
        for block in self.backbone.layers:
            nn.init.kaiming_uniform_(block.mixer.out_proj.weight, a=math.sqrt(5))
            block.mixer.out_proj.weight /= math.sqrt(self.config.n_layer)

    def forward(self, input_ids: torch.Tensor, seq_map: SequenceMap | None = None, *,
                position_indices: torch.Tensor | None = None, cu_seqlens: torch.Tensor | None = None,
                seq_idx: torch.Tensor | None = None, targets: torch.Tensor | None = None,
                weights: torch.Tensor | None = None) -> torch.Tensor:
        """input_ids: (batch, seqlen) integers, anything inside the vocabulary at padding; boundaries as in
        Mamba.forward.

        Without targets: logits (batch, seqlen, padded vocabulary). With targets (batch, seqlen) int64 and weights
        (batch, seqlen): the weighted sum of the tokens' losses, a scalar in fp32, for the caller to divide by the
        sum of the weights of the whole step. next_token_targets() gives both from input_ids and positions. A head
        that is more than a Linear without bias (an adapter, a quantized layer, one with hooks) is called, so that the
        logits of all tokens exist at once.
        """
        if (targets is None) != (weights is None):
            raise ValueError("targets and weights come together: one without the other was given. Weights of 1 weigh "
                             "padding too; next_token_targets() makes both")
        for name, given in (("targets", targets), ("weights", weights)):
            if given is not None and given.shape != input_ids.shape:
                raise BadArgument(f"MambaLM: {name} has shape {tuple(given.shape)}, expected input_ids' (batch, "
                                  f"seqlen), {tuple(input_ids.shape)}")
        seq_map = as_sequence_map(input_ids, seq_map, position_indices, cu_seqlens, seq_idx)
        hidden = self.backbone.embedding(input_ids)
        if torch.is_autocast_enabled(hidden.device.type):
            hidden = hidden.to(torch.get_autocast_dtype(hidden.device.type))
        residual, residual_dtype = None, torch.float32 if self.config.residual_in_fp32 else hidden.dtype
        for block in self.backbone.layers:
            hidden, residual = block(hidden, residual, residual_dtype, seq_map, self.checkpoints, self.fuse)
        hidden, _ = self.backbone.norm_f(hidden, residual, residual_dtype, self.fuse)
        if targets is None:
            return self.lm_head(hidden)
        targets, weights = targets.flatten(), weights.flatten()
        if is_plain(self.lm_head, nn.Linear) and self.lm_head.bias is None:
            return linear_cross_entropy(hidden.flatten(0, 1), self.lm_head.weight, targets, weights, self.chunk_tokens,
                                        self.fuse)
        losses = F.cross_entropy(self.lm_head(hidden).flatten(0, 1).float(), targets.clamp(min=0), reduction="none")
        return (losses * weights.detach().float().masked_fill(targets < 0, 0)).sum()
