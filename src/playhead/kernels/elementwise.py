"""What a decoder computes on each number by itself, and a softmax: embedding, feed-forward gate, cap on logits.

Shapes: T tokens, V vocabulary, D width, I intermediate width, J = 2 * I with the gate in [0, I) and up in [I, 2I); in
the softmax J keys.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from playhead.errors import ConfigError
from playhead.kernels.op import op

ACTIVATIONS = ("silu", "gelu_tanh", "clamped_swiglu")
UNCLAMPED = (1.0, math.inf)  # alpha and limit of activations that have neither


@op(
    inline=True,
    out=lambda ids_T, table_VD, scale: table_VD.new_empty((ids_T.shape[0], table_VD.shape[1])),
    cuda="triton.embedding:launch_embed",
)
def embed(ids_T: Tensor, table_VD: Tensor, scale: float) -> Tensor:
    """Rows of the table times `scale`. Gemma rounds its scale to the weights' dtype: give it rounded."""
    rows_TD = table_VD.index_select(0, ids_T)  # a tape redoes this in place, which it cannot with torch's embedding
    return rows_TD if scale == 1.0 else rows_TD.float().mul_(scale).to(table_VD.dtype)


@op(
    inline=True,
    out=lambda gate_up_TJ, *_: gate_up_TJ.new_empty((gate_up_TJ.shape[0], gate_up_TJ.shape[1] // 2)),
    cuda="triton.activation:launch_gated_activation",
)
def gated_activation(gate_up_TJ: Tensor, activation: str, alpha: float, limit: float) -> Tensor:
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


@op(inline=True, mutates=("logits_TV",), cuda="triton.embedding:launch_softcap")
def softcap_(logits_TV: Tensor, cap: float) -> None:
    """Bends logits into (-cap, cap), in place: cap * tanh(logits / cap)."""
    logits_TV.copy_(cap * torch.tanh(logits_TV.float() / cap))


def softmax_with_sinks(score_J: Tensor, sinks: Tensor | None) -> Tensor:
    """Softmax of scores that are -inf where nothing is seen, with the sinks among them."""
    if sinks is None:
        return torch.softmax(score_J, dim=-1)
    sink_1 = sinks.float()[..., None].expand(*score_J.shape[:-1], 1)
    return torch.softmax(torch.cat((score_J, sink_1), dim=-1), dim=-1)[..., :-1]
