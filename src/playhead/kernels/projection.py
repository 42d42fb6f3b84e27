"""Products of rows with a weight matrix: what a decoder's linear maps are on a GPU.

A step of few rows reads every weight once and takes as long as that, so for such steps there are kernels which stream
the weights at the memory's pace. Larger steps go to the BLAS library. Which of them a product takes is decided by the
number of rows and the matrix's shape when it is launched: every way to run a step chooses alike.

Shapes: T tokens, I inputs, O outputs, M hidden; of a gated map J = 2 * I outputs, the gate's in [0, I) and up's in
[I, 2I).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from playhead.kernels.attention import merge_left
from playhead.kernels.elementwise import UNCLAMPED, gated_activation
from playhead.kernels.norm import add_rms_norm
from playhead.kernels.op import op


@op(mutates=("out_TO",), cuda="triton.projection:launch_project")
def project(out_TO: Tensor, x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None, scale: float, adds: bool) -> None:
    """Writes `scale * (x @ W.T + bias)` into `out_TO`, or with `adds` adds it to what is there. Sums are float32."""
    product_TO = x_TI.float() @ weight_OI.float().t()
    if bias_O is not None:
        product_TO = product_TO + bias_O.float()
    product_TO = scale * product_TO
    out_TO.copy_(out_TO.float() + product_TO if adds else product_TO)


@op(
    out=lambda x_TI, weight_JI, *_: x_TI.new_empty((x_TI.shape[0], weight_JI.shape[0] // 2)),
    cuda="triton.projection:launch_project_gated",
)
def project_gated(x_TI: Tensor, weight_JI: Tensor, bias_J: Tensor | None, activation: str) -> Tensor:
    """`activation(gate) * up` of the product. Few rows are rounded once; larger steps round gate and up as well."""
    return gated_product(x_TI, weight_JI, bias_J, activation, torch.float32)


@op(
    mutates=("out_TO",),
    out=lambda out_TO, x_TI, first_MI, first_bias_M, scale, residual_TM, *_: residual_TM.new_empty(residual_TM.shape),
    cuda="triton.projection:launch_project_normed",
)
def project_normed(
    out_TO: Tensor, x_TI: Tensor, first_MI: Tensor | None, first_bias_M: Tensor | None, scale: float,
    residual_TM: Tensor, norm_M: Tensor, x_norm_M: Tensor | None, eps: float, unit_offset: bool, centred: bool,
    weight_OM: Tensor | None, bias_O: Tensor | None, activation: str | None, num_left: int = 0,
) -> Tensor:  # fmt: skip
    """Two products with a sum between: returns residual + x @ first.T in new memory, writes normed @ W.T into `out_TO`.

    The first product has a scale and may have a bias, as in `project`; without a matrix x is the product itself. It is
    normed before it is added if it has a norm (`x_norm_M`), as in `add_rms_norm`. With an activation the second product
    is gated, as in `project_gated`; without a second matrix the normed sum is written itself. A sum in place would be
    overwritten while other programs still read the residual.

    With `num_left` x is attention's output in so many parts of each head: the first product is of what they make.
    """
    if num_left:
        assert first_MI is not None, "parts are a product's to merge"
        x_TI = merge_left(x_TI, num_left, first_MI.shape[1]).to(residual_TM.dtype)
    x_TM = x_TI if first_MI is None else product(x_TI, first_MI, first_bias_M, scale, torch.float32)
    norm = (norm_M, x_norm_M, eps, unit_offset, centred)
    return product_of_normed(out_TO, x_TM, residual_TM, norm, weight_OM, bias_O, activation, torch.float32)


# What the references of these ops and of those in order share. `dtype` is what products between two steps are kept in.


def product(x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None, scale: float, dtype: torch.dtype) -> Tensor:
    out_TO = torch.empty((x_TI.shape[0], weight_OI.shape[0]), dtype=dtype, device=x_TI.device)
    project.reference(out_TO, x_TI, weight_OI, bias_O, scale, False)
    return out_TO


def gated_product(
    x_TI: Tensor, weight_JI: Tensor, bias_J: Tensor | None, activation: str, dtype: torch.dtype
) -> Tensor:
    gate_up_TJ = product(x_TI, weight_JI, bias_J, 1.0, dtype)
    return gated_activation.reference(gate_up_TJ, activation, *UNCLAMPED).to(x_TI.dtype)


def product_of_normed(
    out_TO: Tensor, x_TM: Tensor, residual_TM: Tensor, norm: tuple[Any, ...],
    weight_OM: Tensor | None, bias_O: Tensor | None, activation: str | None, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """Returns the sum of x and the residual in new memory, and writes the normed sum or its product."""
    total_TM = residual_TM.clone()
    h_TM = add_rms_norm.reference(x_TM, total_TM, *norm)
    if weight_OM is None:
        out_TO.copy_(h_TM)
    elif activation is None:
        project.reference(out_TO, h_TM, weight_OM, bias_O, 1.0, False)
    else:
        out_TO.copy_(gated_product(h_TM, weight_OM, bias_O, activation, dtype))
    return total_TM
