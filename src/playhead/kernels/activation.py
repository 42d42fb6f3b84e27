"""The gate of a feed-forward block: activation(gate) * up, from one projection that holds both.

Shapes: T tokens, I intermediate width, J = 2 * I with the gate in [0, I) and up in [I, 2I).
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from playhead.errors import ConfigError
from playhead.kernels.op import register_op

ACTIVATIONS = ("silu", "gelu_tanh", "clamped_swiglu")


def gated_activation_reference(
    gate_up_TJ: torch.Tensor, activation: str, alpha: float = 1.702, limit: float = 7.0
) -> torch.Tensor:
    """activation(gate) * up in float32, rounded once. `alpha` and `limit` shape clamped_swiglu (gpt-oss) alone:
    (up + 1) * gate * sigmoid(alpha * gate), with gate cut above at `limit` and up on both sides.
    """
    gate_TI, up_TI = gate_up_TJ.float().chunk(2, dim=-1)
    if activation == "silu":
        out_TI = F.silu(gate_TI).mul_(up_TI)
    elif activation == "gelu_tanh":
        out_TI = F.gelu(gate_TI, approximate="tanh").mul_(up_TI)
    elif activation == "clamped_swiglu":
        gate_TI, up_TI = gate_TI.clamp(max=limit), up_TI.clamp(-limit, limit)
        out_TI = (up_TI + 1.0) * gate_TI * torch.sigmoid(alpha * gate_TI)
    else:
        raise ConfigError(
            f"gated_activation: found {activation!r}; wanted one of {ACTIVATIONS}. Map the model's name to one"
        )
    return out_TI.to(gate_up_TJ.dtype)


def _cuda(gate_up_TJ: torch.Tensor, activation: str, alpha: float = 1.702, limit: float = 7.0) -> torch.Tensor:
    from playhead.kernels.triton.activation import launch_gated_activation

    return launch_gated_activation(gate_up_TJ, activation, alpha, limit)


def _half_width(gate_up_TJ: torch.Tensor, *_: object) -> torch.Tensor:
    return gate_up_TJ.new_empty((gate_up_TJ.shape[0], gate_up_TJ.shape[1] // 2))


gated_activation = register_op(
    "gated_activation", inline=True, reference=gated_activation_reference, cuda=_cuda, fake=_half_width
)
