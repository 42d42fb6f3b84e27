"""Normalisation of rows, alone and together with the residual they are added to.

A row is divided by its root mean square and multiplied by a weight, or by 1 + weight with `unit_offset`. With `centred`
its mean is taken off first, which makes it LayerNorm without a bias.

Shapes: T tokens, D width.
"""

from __future__ import annotations

import torch

from playhead.kernels.op import no_output, register_op


def normalised(
    x_TD: torch.Tensor, weight_D: torch.Tensor, eps: float, unit_offset: bool, centred: bool = False
) -> torch.Tensor:
    """The normalised rows in float32."""
    wide_TD = x_TD.float()
    if centred:
        wide_TD = wide_TD - wide_TD.mean(-1, keepdim=True)
    wide_TD = wide_TD * torch.rsqrt(wide_TD.pow(2).mean(-1, keepdim=True) + eps)
    return wide_TD * (weight_D.float() + 1.0 if unit_offset else weight_D.float())


def rms_norm_reference(
    x_TD: torch.Tensor, weight_D: torch.Tensor, eps: float, unit_offset: bool, centred: bool = False
) -> torch.Tensor:
    """Normalised rows in the input's dtype, rounded once."""
    return normalised(x_TD, weight_D, eps, unit_offset, centred).to(x_TD.dtype)


def add_rms_norm_reference(
    x_TD: torch.Tensor,
    residual_TD: torch.Tensor,
    weight_D: torch.Tensor,
    x_weight_D: torch.Tensor | None,
    eps: float,
    unit_offset: bool,
    centred: bool = False,
) -> torch.Tensor:
    """Adds x to the residual in place and returns the sum normalised.

    With `x_weight_D`, x is normalised before it is added: models that norm a block's output too (Gemma) need one
    kernel between blocks instead of three. The norm sees the sum as it was stored, so a later reader of the residual
    and this one agree on its value.
    """
    wide_TD = x_TD.float() if x_weight_D is None else normalised(x_TD, x_weight_D, eps, unit_offset, centred)
    residual_TD.copy_(residual_TD.float() + wide_TD)
    return rms_norm_reference(residual_TD, weight_D, eps, unit_offset, centred)


def norm_add_reference(
    x_TD: torch.Tensor,
    residual_TD: torch.Tensor,
    x_weight_D: torch.Tensor,
    eps: float,
    unit_offset: bool,
    centred: bool = False,
) -> None:
    """Adds x, normalised, to the residual in place: for models whose next block reads the sum itself (OLMo)."""
    residual_TD.copy_(residual_TD.float() + normalised(x_TD, x_weight_D, eps, unit_offset, centred))


def inverse_rms(x_TD: torch.Tensor, eps: float) -> torch.Tensor:
    """One over the root mean square of float32 rows, [..., 1]: one pass over them, and three ops on a number each."""
    norm_T1: torch.Tensor = torch.linalg.vector_norm(x_TD, dim=-1, keepdim=True)
    mean_T1 = torch.empty_like(norm_T1).fill_(eps).addcmul_(norm_T1, norm_T1, value=1.0 / x_TD.shape[-1])
    return mean_T1.rsqrt_()


def weighed(x_TD: torch.Tensor, weight_D: torch.Tensor, unit_offset: bool) -> torch.Tensor:
    return torch.addcmul(x_TD, x_TD, weight_D) if unit_offset else x_TD * weight_D


def rms_norm_cpu(
    x_TD: torch.Tensor, weight_D: torch.Tensor, eps: float, unit_offset: bool, centred: bool = False
) -> torch.Tensor:
    """The reference in half as many passes, for float32."""
    if x_TD.dtype != torch.float32 or centred:
        return rms_norm_reference(x_TD, weight_D, eps, unit_offset, centred)
    return weighed(x_TD, weight_D, unit_offset).mul_(inverse_rms(x_TD, eps))


def add_rms_norm_cpu(
    x_TD: torch.Tensor,
    residual_TD: torch.Tensor,
    weight_D: torch.Tensor,
    x_weight_D: torch.Tensor | None,
    eps: float,
    unit_offset: bool,
    centred: bool = False,
) -> torch.Tensor:
    """The same."""
    if x_TD.dtype != torch.float32 or centred:
        return add_rms_norm_reference(x_TD, residual_TD, weight_D, x_weight_D, eps, unit_offset, centred)
    if x_weight_D is None:
        residual_TD.add_(x_TD)
    else:
        residual_TD.addcmul_(weighed(x_TD, x_weight_D, unit_offset), inverse_rms(x_TD, eps))
    return weighed(residual_TD, weight_D, unit_offset).mul_(inverse_rms(residual_TD, eps))


def _rms_norm_cuda(*args: object) -> torch.Tensor:
    from playhead.kernels.norm_triton import launch_rms_norm

    return launch_rms_norm(*args)  # type: ignore[arg-type]


def _add_rms_norm_cuda(*args: object) -> torch.Tensor:
    from playhead.kernels.norm_triton import launch_add_rms_norm

    return launch_add_rms_norm(*args)  # type: ignore[arg-type]


def _norm_add_cuda(*args: object) -> None:
    from playhead.kernels.norm_triton import launch_norm_add

    launch_norm_add(*args)  # type: ignore[arg-type]


def _like_x(x_TD: torch.Tensor, *_: object) -> torch.Tensor:
    return x_TD.new_empty(x_TD.shape)


rms_norm = register_op(
    "rms_norm", inline=True, reference=rms_norm_reference, cpu=rms_norm_cpu, cuda=_rms_norm_cuda, fake=_like_x
)

add_rms_norm = register_op(
    "add_rms_norm",
    inline=True,
    reference=add_rms_norm_reference,
    cpu=add_rms_norm_cpu,
    cuda=_add_rms_norm_cuda,
    fake=_like_x,
    mutates=("residual_TD",),
)

norm_add_ = register_op(
    "norm_add_",
    inline=True,
    reference=norm_add_reference,
    cuda=_norm_add_cuda,
    fake=no_output,
    mutates=("residual_TD",),
)
