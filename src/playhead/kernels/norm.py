"""Normalisation of rows, alone and together with the residual they are added to.

A row is divided by its root mean square and multiplied by a weight, or by 1 + weight with `unit_offset`. With `centred`
its mean is taken off first, which makes it LayerNorm without a bias.

Shapes: T tokens, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from playhead.kernels.op import like_first, op


def normalised(x_TD: Tensor, weight_D: Tensor, eps: float, unit_offset: bool, centred: bool = False) -> Tensor:
    """The normalised rows in float32."""
    wide_TD = x_TD.float()
    if centred:
        wide_TD = wide_TD - wide_TD.mean(-1, keepdim=True)
    wide_TD = wide_TD * torch.rsqrt(wide_TD.pow(2).mean(-1, keepdim=True) + eps)
    return wide_TD * (weight_D.float() + 1.0 if unit_offset else weight_D.float())


@op(out=like_first, bind="cpu.norm:bind_rms_norm", cuda="triton.norm:launch_rms_norm")
def rms_norm(x_TD: Tensor, weight_D: Tensor, eps: float, unit_offset: bool, centred: bool) -> Tensor:
    """Normalised rows in the input's dtype, rounded once."""
    return normalised(x_TD, weight_D, eps, unit_offset, centred).to(x_TD.dtype)


@op(
    mutates=("residual_TD",),
    out=like_first,
    bind="cpu.norm:bind_add_rms_norm",
    cuda="triton.norm:launch_add_rms_norm",
)
def add_rms_norm(
    x_TD: Tensor, residual_TD: Tensor, weight_D: Tensor, x_weight_D: Tensor | None,
    eps: float, unit_offset: bool, centred: bool,
) -> Tensor:  # fmt: skip
    """Adds x to the residual in place and returns the sum normalised.

    With `x_weight_D`, x is normalised before it is added: models that norm a block's output too (Gemma) need one
    kernel between blocks instead of three. The norm sees the sum as it was stored, so a later reader of the residual
    and this one agree on its value.
    """
    wide_TD = x_TD.float() if x_weight_D is None else normalised(x_TD, x_weight_D, eps, unit_offset, centred)
    residual_TD.copy_(residual_TD.float() + wide_TD)
    return normalised(residual_TD, weight_D, eps, unit_offset, centred).to(residual_TD.dtype)


@op(mutates=("residual_TD",), bind="cpu.norm:bind_norm_add", cuda="triton.norm:launch_norm_add")
def norm_add_(
    x_TD: Tensor, residual_TD: Tensor, x_weight_D: Tensor, eps: float, unit_offset: bool, centred: bool
) -> None:
    """Adds x, normalised, to the residual in place: for models whose next block reads the sum itself (OLMo)."""
    residual_TD.copy_(residual_TD.float() + normalised(x_TD, x_weight_D, eps, unit_offset, centred))
