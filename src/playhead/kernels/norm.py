"""Normalisation of rows, alone and together with the residual they are added to.

A row is divided by its root mean square and multiplied by a weight, or by 1 + weight with `unit_offset`. With `centred`
its mean is taken off first, which makes it LayerNorm without a bias.

Shapes: T tokens, D width.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from playhead.bound_ops import Work
from playhead.kernels.op import no_cuda, register_bound_op, register_op

Floats = npt.NDArray[Any]

ONE = np.float32(1.0)


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


def rms_norm_into_reference(
    out_TD: torch.Tensor,
    x_TD: torch.Tensor,
    weight_D: torch.Tensor,
    eps: float,
    unit_offset: bool,
    centred: bool = False,
) -> None:
    out_TD.copy_(rms_norm_reference(x_TD, weight_D, eps, unit_offset, centred))


def add_rms_norm_into_reference(
    out_TD: torch.Tensor,
    x_TD: torch.Tensor,
    residual_TD: torch.Tensor,
    weight_D: torch.Tensor,
    x_weight_D: torch.Tensor | None,
    eps: float,
    unit_offset: bool,
    centred: bool = False,
) -> None:
    out_TD.copy_(add_rms_norm_reference(x_TD, residual_TD, weight_D, x_weight_D, eps, unit_offset, centred))


def bind_normed(rows: Floats, weights: Floats, out: Floats, eps: float, unit_offset: bool) -> Work:
    """The norm of float32 rows [..., D] into `out`, by numpy."""
    power, scales = np.empty((*rows.shape[:-1], 1), np.float32), np.empty_like(weights)
    width = rows.shape[-1]
    power_of_rows, least, root = power[..., 0], np.float32(width * eps), np.float32(width**0.5)

    def work() -> None:
        # One dot product for each row, so a row's result does not depend on how many there are.
        np.vecdot(rows, rows, power_of_rows)
        # 1 / sqrt(power / width + eps), without a division of its own by the width.
        np.add(power, least, power)
        np.divide(root, np.sqrt(power, power), power)
        np.multiply(rows, power, out)
        np.multiply(out, np.add(weights, ONE, scales) if unit_offset else weights, out)

    return work


def are_plain(centred: bool, *tensors: torch.Tensor | None) -> bool:
    """Whether numpy can do it."""
    return not centred and all(tensor is None or tensor.dtype == torch.float32 for tensor in tensors)


def bind_rms_norm_into(
    out_TD: torch.Tensor,
    x_TD: torch.Tensor,
    weight_D: torch.Tensor,
    eps: float,
    unit_offset: bool,
    centred: bool = False,
) -> Work:
    if not are_plain(centred, x_TD, weight_D):
        return partial(rms_norm_into_reference, out_TD, x_TD, weight_D, eps, unit_offset, centred)
    return bind_normed(x_TD.numpy(), weight_D.numpy(), out_TD.numpy(), eps, unit_offset)


def bind_add_rms_norm_into(
    out_TD: torch.Tensor,
    x_TD: torch.Tensor,
    residual_TD: torch.Tensor,
    weight_D: torch.Tensor,
    x_weight_D: torch.Tensor | None,
    eps: float,
    unit_offset: bool,
    centred: bool = False,
) -> Work:
    if not are_plain(centred, x_TD, residual_TD, weight_D, x_weight_D):
        weights = (weight_D, x_weight_D, eps, unit_offset, centred)
        return partial(add_rms_norm_into_reference, out_TD, x_TD, residual_TD, *weights)
    residual, out = residual_TD.numpy(), out_TD.numpy()
    norm_sum = bind_normed(residual, weight_D.numpy(), out, eps, unit_offset)
    if x_weight_D is None:
        x = x_TD.numpy()

        def add_and_norm() -> None:
            np.add(residual, x, residual)
            norm_sum()

        return add_and_norm
    norm_x = bind_normed(x_TD.numpy(), x_weight_D.numpy(), out, eps, unit_offset)

    def norm_add_and_norm() -> None:
        norm_x()
        np.add(residual, out, residual)
        norm_sum()

    return norm_add_and_norm


def bind_norm_add(
    x_TD: torch.Tensor,
    residual_TD: torch.Tensor,
    x_weight_D: torch.Tensor,
    eps: float,
    unit_offset: bool,
    centred: bool = False,
) -> Work:
    if not are_plain(centred, x_TD, residual_TD, x_weight_D):
        return partial(norm_add_reference, x_TD, residual_TD, x_weight_D, eps, unit_offset, centred)
    residual = residual_TD.numpy()
    normed = np.empty(residual.shape, np.float32)
    norm_x = bind_normed(x_TD.numpy(), x_weight_D.numpy(), normed, eps, unit_offset)

    def work() -> None:
        norm_x()
        np.add(residual, normed, residual)

    return work


def rms_norm_cpu(
    x_TD: torch.Tensor, weight_D: torch.Tensor, eps: float, unit_offset: bool, centred: bool = False
) -> torch.Tensor:
    """The reference, into memory that a tape can fill again."""
    out_TD = x_TD.new_empty(x_TD.shape)
    rms_norm_into(out_TD, x_TD, weight_D, eps, unit_offset, centred)
    return out_TD


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
    out_TD = x_TD.new_empty(x_TD.shape)
    add_rms_norm_into(out_TD, x_TD, residual_TD, weight_D, x_weight_D, eps, unit_offset, centred)
    return out_TD


def _rms_norm_cuda(*args: object) -> torch.Tensor:
    from playhead.kernels.triton.norm import launch_rms_norm

    return launch_rms_norm(*args)  # type: ignore[arg-type]


def _add_rms_norm_cuda(*args: object) -> torch.Tensor:
    from playhead.kernels.triton.norm import launch_add_rms_norm

    return launch_add_rms_norm(*args)  # type: ignore[arg-type]


def _norm_add_cuda(*args: object) -> None:
    from playhead.kernels.triton.norm import launch_norm_add

    launch_norm_add(*args)  # type: ignore[arg-type]


def _like_x(x_TD: torch.Tensor, *_: object) -> torch.Tensor:
    return x_TD.new_empty(x_TD.shape)


rms_norm_into = register_bound_op(
    "rms_norm_into",
    reference=rms_norm_into_reference,
    bind=bind_rms_norm_into,
    cuda=no_cuda,
    mutates=("out_TD",),
)

add_rms_norm_into = register_bound_op(
    "add_rms_norm_into",
    reference=add_rms_norm_into_reference,
    bind=bind_add_rms_norm_into,
    cuda=no_cuda,
    mutates=("out_TD", "residual_TD"),
)

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

norm_add_ = register_bound_op(
    "norm_add_",
    reference=norm_add_reference,
    bind=bind_norm_add,
    cuda=_norm_add_cuda,
    mutates=("residual_TD",),
)
