"""The Mamba block on packed batches, with the parameters of the official one."""

from __future__ import annotations

import math

import torch
from torch import nn

from packjit.errors import BadArgument, WrongType
from packjit.torch.mamba_inner import mamba_inner, product, separately
from packjit.torch.sequence_map import SequenceMap


class Mamba(nn.Module):
    """Mamba-1 (Gu and Dao 2023, section 3.4) without a transpose: every tensor inside is (batch, seqlen, channels).

    Names, shapes and initial values of the parameters are those of mamba_ssm.Mamba, so that a state dict loads both
    ways: in_proj.weight (2 d_inner, d_model), conv1d.weight (d_inner, 1, d_conv), conv1d.bias (d_inner), x_proj.weight
    (dt_rank + 2 d_state, d_inner), dt_proj.weight (d_inner, dt_rank), dt_proj.bias (d_inner), A_log (d_inner, d_state),
    D (d_inner), out_proj.weight (d_model, d_inner). A_log and D are fp32 whatever `dtype` is, and have
    `_no_weight_decay`.
    """

    def __init__(self, d_model: int, d_state: int = 16, d_conv: int = 4, expand: int = 2, dt_rank: int | str = "auto",
                 dt_min: float = 0.001, dt_max: float = 0.1, dt_init: str = "random", dt_scale: float = 1.0,
                 dt_init_floor: float = 1e-4, conv_bias: bool = True, bias: bool = False,
                 layer_idx: int | None = None, device: torch.device | str | None = None,
                 dtype: torch.dtype | None = None):
        super().__init__()
        self.d_model, self.d_state, self.d_conv, self.expand = d_model, d_state, d_conv, expand
        self.d_inner = expand * d_model
        self.dt_rank = math.ceil(d_model / 16) if dt_rank == "auto" else dt_rank
        self.layer_idx = layer_idx
        like = {"device": device, "dtype": dtype}
        self.in_proj = nn.Linear(d_model, 2 * self.d_inner, bias=bias, **like)
        self.conv1d = nn.Conv1d(self.d_inner, self.d_inner, d_conv, groups=self.d_inner, padding=d_conv - 1,
                                bias=conv_bias, **like)
        self.x_proj = nn.Linear(self.d_inner, self.dt_rank + 2 * d_state, bias=False, **like)
        self.dt_proj = nn.Linear(self.dt_rank, self.d_inner, bias=True, **like)
        self.A_log = nn.Parameter(torch.empty(self.d_inner, d_state, device=device, dtype=torch.float32))
        self.D = nn.Parameter(torch.empty(self.d_inner, device=device, dtype=torch.float32))
        self.A_log._no_weight_decay = self.D._no_weight_decay = True
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=bias, **like)
        self._init_scan(dt_init, dt_min, dt_max, dt_scale, dt_init_floor)

    @torch.no_grad()
    def _init_scan(self, dt_init: str, dt_min: float, dt_max: float, dt_scale: float, dt_init_floor: float) -> None:
        """S4D-real for A; dt_proj such that softplus(dt_proj.bias) is spread evenly in log from dt_min to dt_max."""
        deviation = self.dt_rank ** -0.5 * dt_scale
        if dt_init == "constant":
            nn.init.constant_(self.dt_proj.weight, deviation)
        elif dt_init == "random":
            nn.init.uniform_(self.dt_proj.weight, -deviation, deviation)
        else:
            raise ValueError(f"dt_init is {dt_init!r}, expected 'random' or 'constant'")
        exponent = torch.rand(self.d_inner, device=self.D.device)
        dt = torch.exp(exponent * math.log(dt_max / dt_min) + math.log(dt_min)).clamp(min=dt_init_floor)
        self.dt_proj.bias.copy_(dt + torch.log(-torch.expm1(-dt)))  # the inverse of softplus
        self.dt_proj.bias._no_reinit = True
        self.A_log.copy_(torch.log(torch.arange(1, self.d_state + 1, device=self.D.device, dtype=torch.float32)))
        self.D.fill_(1.0)

    def forward(self, hidden_states: torch.Tensor, seq_map: SequenceMap | None = None, *,
                position_indices: torch.Tensor | None = None, cu_seqlens: torch.Tensor | None = None,
                seq_idx: torch.Tensor | None = None, checkpoints: bool = False) -> torch.Tensor:
        """hidden_states: (batch, seqlen, d_model); gives the same shape. Exactly one of the four says where sequences
        begin: a SequenceMap, which all layers of a model should share, or what it is made of. checkpoints: the scan's
        forward keeps states for its backward, which is then faster (ssm_pack)."""
        seq_map = as_sequence_map(hidden_states, seq_map, position_indices, cu_seqlens, seq_idx)
        return mix(self, hidden_states, seq_map, checkpoints)


def as_sequence_map(tokens: torch.Tensor, seq_map: SequenceMap | None, position_indices: torch.Tensor | None,
                    cu_seqlens: torch.Tensor | None, seq_idx: torch.Tensor | None) -> SequenceMap:
    """The one that is given, or one made from the one form that is given; tokens: (batch, seqlen, ...)."""
    given = [form is not None for form in (seq_map, position_indices, cu_seqlens, seq_idx)]
    if sum(given) != 1:
        raise ValueError(f"{sum(given)} of seq_map, position_indices, cu_seqlens and seq_idx were given, expected one. "
                         "For rows that are one sequence each, give SequenceMap.rows(batch, seqlen, device)")
    if seq_map is not None:
        if not isinstance(seq_map, SequenceMap):
            raise WrongType(f"seq_map is a {type(seq_map).__name__}, expected a packjit.torch.SequenceMap; "
                              "boundaries as tensors go by name: position_indices, cu_seqlens or seq_idx")
        return seq_map
    if position_indices is not None:
        return SequenceMap.from_position_indices(position_indices)
    if cu_seqlens is not None:
        return SequenceMap.from_cu_seqlens(cu_seqlens, *tokens.shape[:2])
    return SequenceMap.from_seq_idx(seq_idx)


def is_plain(module: nn.Module, layer: type[nn.Module]) -> bool:
    """Whether a call of `module` is layer.forward with its weight and bias and no more, so that these may be used
    without the call: what an adapter, a quantized layer or a hook does would be left out, without a word. A layer
    that is parametrized is plain: its weight is what the parametrization gives. So is one that accelerate gave a
    forward for a device_map without offloading, which only moves what it is given to the layer's GPU."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    if type(module).forward is not layer.forward or any(map(len, hooks)):
        return False
    return "forward" not in module.__dict__ or not getattr(getattr(module, "_hf_hook", None), "offload", True)


def mix(block: nn.Module, hidden_states: torch.Tensor, seq_map: SequenceMap, checkpoints: bool = False) -> torch.Tensor:
    """A Mamba block's forward with the parameters of any module that names them as the official block does. Where
    x_proj or dt_proj is not a plain Linear it is called, between separate operators."""
    conv1d, x_proj, dt_proj = block.conv1d, block.x_proj, block.dt_proj
    if not is_plain(conv1d, nn.Conv1d):
        raise BadArgument(f"Mamba: conv1d is a {type(conv1d).__name__} with a forward or hooks of its own, expected a "
                          "plain torch.nn.Conv1d: called, it would reach over the boundaries of sequences. Leave "
                          "conv1d out of what is adapted, or merge the adapter into its weight; remove its hooks")
    xz, A, D = block.in_proj(hidden_states), -torch.exp(block.A_log.float()), block.D.float()
    convolution = conv1d.weight.squeeze(1), conv1d.bias
    x_is_product = is_plain(x_proj, nn.Linear) and x_proj.bias is None
    delta_bias = dt_proj.bias.float() if is_plain(dt_proj, nn.Linear) and dt_proj.bias is not None else None
    if x_is_product and delta_bias is not None:
        y = mamba_inner(xz, *convolution, x_proj.weight, dt_proj.weight, A, D, delta_bias, seq_map, checkpoints)
    else:  # the bias of a dt_proj that is not called is added in fp32
        y = separately(xz, *convolution, product(x_proj.weight) if x_is_product else x_proj,
                       dt_proj if delta_bias is None else product(dt_proj.weight), A, D, delta_bias, seq_map,
                       checkpoints)
    return block.out_proj(y)
