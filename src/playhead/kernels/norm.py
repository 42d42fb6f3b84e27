"""RMS normalisation of rows, alone and together with the residual it is added to.

Shapes: T tokens, D width.
"""

from __future__ import annotations

import torch

from playhead.kernels.op import register_op


def normalised(x_TD: torch.Tensor, weight_D: torch.Tensor, eps: float, unit_offset: bool) -> torch.Tensor:
    """Rows over their root mean square, times the weight, in float32."""
    wide_TD = x_TD.float()
    wide_TD = wide_TD * torch.rsqrt(wide_TD.pow(2).mean(-1, keepdim=True) + eps)
    return wide_TD * (weight_D.float() + 1.0 if unit_offset else weight_D.float())


def rms_norm_reference(x_TD: torch.Tensor, weight_D: torch.Tensor, eps: float, unit_offset: bool) -> torch.Tensor:
    """Normalised rows in the input's dtype, rounded once. With `unit_offset` the factor is 1 + weight."""
    return normalised(x_TD, weight_D, eps, unit_offset).to(x_TD.dtype)


def add_rms_norm_reference(
    x_TD: torch.Tensor,
    residual_TD: torch.Tensor,
    weight_D: torch.Tensor,
    x_weight_D: torch.Tensor | None,
    eps: float,
    unit_offset: bool,
) -> torch.Tensor:
    """Adds x to the residual in place and returns the sum normalised.

    With `x_weight_D`, x is normalised before it is added: models that norm a block's output too (Gemma) need one
    kernel between blocks instead of three. The norm sees the sum as it was stored, so a later reader of the residual
    and this one agree on its value.
    """
    wide_TD = x_TD.float() if x_weight_D is None else normalised(x_TD, x_weight_D, eps, unit_offset)
    residual_TD.copy_(residual_TD.float() + wide_TD)
    return rms_norm_reference(residual_TD, weight_D, eps, unit_offset)


def _rms_norm_cuda(x_TD: torch.Tensor, weight_D: torch.Tensor, eps: float, unit_offset: bool) -> torch.Tensor:
    from playhead.kernels.norm_triton import launch_rms_norm

    return launch_rms_norm(x_TD, weight_D, eps, unit_offset)


def _add_rms_norm_cuda(
    x_TD: torch.Tensor,
    residual_TD: torch.Tensor,
    weight_D: torch.Tensor,
    x_weight_D: torch.Tensor | None,
    eps: float,
    unit_offset: bool,
) -> torch.Tensor:
    from playhead.kernels.norm_triton import launch_add_rms_norm

    return launch_add_rms_norm(x_TD, residual_TD, weight_D, x_weight_D, eps, unit_offset)


def _like_x(x_TD: torch.Tensor, *_: object) -> torch.Tensor:
    return x_TD.new_empty(x_TD.shape)


rms_norm = register_op("rms_norm", reference=rms_norm_reference, cuda=_rms_norm_cuda, fake=_like_x)

add_rms_norm = register_op(
    "add_rms_norm",
    reference=add_rms_norm_reference,
    cuda=_add_rms_norm_cuda,
    fake=_like_x,
    mutates=("residual_TD",),
)
