# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Triton kernel of `gated_activation`: one program per block of columns of one row.

Shapes: T tokens, I intermediate width, J = 2 * I.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from playhead.errors import ConfigError
from playhead.kernels.elementwise import ACTIVATIONS
from playhead.kernels.sizes import ceil_div
from playhead.kernels.triton.dependent import after_upstream, dependent, let_downstream_start

BLOCK = 1024  # eight elements for each of 128 threads


@triton.jit
def gated(gate, up, alpha, limit, ACTIVATION: tl.constexpr):
    """activation(gate) * up, in float32."""
    if ACTIVATION == "silu":
        y = gate * tl.sigmoid(gate) * up
    elif ACTIVATION == "gelu_tanh":
        # 0.5 * (1 + tanh(u)) is sigmoid(2u), which Triton has on every backend.
        y = gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)) * up
    else:
        gate = tl.minimum(gate, limit)
        up = tl.maximum(tl.minimum(up, limit), -limit)
        y = (up + 1.0) * gate * tl.sigmoid(alpha * gate)
    return y


@triton.jit
def gated_activation_kernel(
    gate_up, out, row_stride, alpha, limit,
    WIDTH: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    let_downstream_start(DEPENDENT)
    after_upstream(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = col < WIDTH
    gate = tl.load(gate_up + row * row_stride + col, mask=live, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * row_stride + WIDTH + col, mask=live, other=0.0).to(tl.float32)
    y = gated(gate, up, alpha, limit, ACTIVATION)
    tl.store(out + row * WIDTH + col, y.to(out.dtype.element_ty), mask=live)


def launch_gated_activation(gate_up_TJ: torch.Tensor, activation: str, alpha: float, limit: float) -> torch.Tensor:
    shape = (gate_up_TJ.shape[0], gate_up_TJ.shape[1] // 2)
    out_TI = torch.empty(shape, dtype=gate_up_TJ.dtype, device=gate_up_TJ.device)
    launch_gated_activation_into(out_TI, gate_up_TJ, activation, alpha, limit)
    return out_TI


def launch_gated_activation_into(
    out_TI: torch.Tensor, gate_up_TJ: torch.Tensor, activation: str, alpha: float, limit: float,
    *, in_order: bool = False,
) -> None:  # fmt: skip
    """With `in_order` no two operations become one, which a compiler may do here and not in another kernel."""
    if activation not in ACTIVATIONS:
        raise ConfigError(
            f"gated_activation: found {activation!r}; wanted one of {ACTIVATIONS}. Map the model's name to one"
        )
    num_tokens, width = out_TI.shape
    gated_activation_kernel[(num_tokens, ceil_div(width, BLOCK))](
        gate_up_TJ, out_TI, gate_up_TJ.stride(0), alpha, limit, WIDTH=width, ACTIVATION=activation, BLOCK=BLOCK,
        enable_fp_fusion=not in_order, **dependent(gate_up_TJ),
    )  # fmt: skip
