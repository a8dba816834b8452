"""Elementwise work between the operators, in as few passes over memory as torch.compile makes of it."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch


def fused(function: Callable) -> Callable:
    """`function` through torch.compile where its first tensor is on a GPU; as it is elsewhere, and inside a compile of
    the caller's. It has to be pure. Its first tensor is (tokens, channels). One compiled kernel serves any number of
    tokens, and each number of channels gets its own."""
    compiled = functools.cache(lambda: torch.compile(function))

    @functools.wraps(function)
    def call(first, *rest):
        if not first.is_cuda or torch.compiler.is_compiling():
            return function(first, *rest)
        for tensor in (first, *rest):
            if isinstance(tensor, torch.Tensor) and not isinstance(tensor, torch.nn.Parameter):
                _say_what_varies(tensor, first.shape[0])
        return compiled()(first, *rest)

    return call


def _say_what_varies(tensor: torch.Tensor, tokens: int) -> None:
    """For torch.compile: the first dimension where it counts tokens, nothing else. Left to itself, it would
    make channels a variable too as soon as it sees a second model."""
    for dimension, size in enumerate(tensor.shape):
        if dimension == 0 and size == tokens:
            torch._dynamo.maybe_mark_dynamic(tensor, 0)
        else:
            torch._dynamo.mark_static(tensor, dimension)


def add_rms_norm(hidden: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float,
                 residual_dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """residual + hidden, and its root-mean-square norm times weight: x / sqrt(mean(x^2) + eps) * weight, computed in
    fp32.

    hidden, residual: (tokens, d_model); weight: (d_model). Gives the norm in hidden's dtype and the sum in
    `residual_dtype`."""
    total = hidden.to(residual_dtype) if residual is None else residual + hidden
    values = total.float()
    scale = torch.rsqrt(values.square().mean(dim=-1, keepdim=True) + eps)
    return (values * scale * weight.float()).to(hidden.dtype), total.to(residual_dtype)


fused_add_rms_norm = fused(add_rms_norm)
