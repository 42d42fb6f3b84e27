"""What surrounds attention: the packed projection before it, norms and rotation of q and k, the output projection.

Shapes: T tokens, M hidden, X = all heads of q, k and v, Y = all heads of the output, H heads, K kv heads, D head dim of
q and k, E head dim of v, W = D or all heads' dims together, P positions, R rotary dim.
"""

from __future__ import annotations

import torch
from torch import nn

from playhead.attention.base import QKTransform
from playhead.kernels.rope import split_heads, turned_heads
from playhead.layers.linear import WeightFormat
from playhead.layers.norm import Norm
from playhead.layers.rope import Rope
from playhead.layers.spec import AttentionSpec, NormKind, NormSpec, QKNorm


class AttentionBlock(nn.Module):
    """The two projections of one layer, its norms of queries and keys, and its sinks. The caller attends."""

    q_norm: Norm | None
    k_norm: Norm | None
    sinks_H: nn.Parameter | None

    def __init__(self, spec: AttentionSpec, hidden_size: int, norm: NormSpec, weights: WeightFormat) -> None:
        super().__init__()
        whole, spec = spec, weights.shard.attention(spec)
        self.spec, self._norm = spec, norm
        dtype, device = weights.dtype, weights.device
        self.qkv = weights.linear(hidden_size, sum(spec.qkv_sizes), has_bias=spec.has_qkv_bias)
        has_bias, scale, num_units = spec.has_output_bias, spec.output_scale, weights.shard.query_units(whole)
        self.out = weights.linear_back(
            whole.output_size, hidden_size, num_units=num_units, has_bias=has_bias, scale=scale
        )
        self.q_norm = self.k_norm = self.sinks_H = None
        if spec.qk_norm is not QKNorm.NONE:
            assert norm.kind is not NormKind.LAYERNORM, "no family norms queries and keys by LayerNorm"
            q_size, k_size, _ = spec.qkv_sizes
            if spec.qk_norm is QKNorm.HEAD:
                q_size = k_size = spec.k_head_dim
            self.q_norm = Norm(norm, q_size, dtype=dtype, device=device)
            self.k_norm = Norm(norm, k_size, dtype=dtype, device=device)
        if spec.has_sinks:
            self.sinks_H = nn.Parameter(torch.empty(spec.num_heads, dtype=dtype, device=device), requires_grad=False)

    def transform(self, rope: Rope | None) -> QKTransform:
        """The norms and the rotation of this layer."""
        q_weight_W, k_weight_W = (None if norm is None else norm.weight for norm in (self.q_norm, self.k_norm))
        table_PR, interleaved = (None, False) if rope is None else (rope.table_PR, rope.spec.interleaved)
        return QKTransform(
            tensors=(q_weight_W, k_weight_W, table_PR),
            numbers=(self._norm.eps, self._norm.kind is NormKind.RMS1P, interleaved),
        )


def turned_qkv(
    qkv_TX: torch.Tensor, spec: AttentionSpec, transform: QKTransform, positions_T: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k and v as `split_heads` gives them, q and k normed and rotated: for attention that keeps k and v itself."""
    q_THD, k_TKD, v_TKE = split_heads(qkv_TX, spec.num_kv_heads, spec.k_head_dim, spec.v_head_dim)
    q_weight_W, k_weight_W, table_PR = transform.tensors
    rest = (table_PR, positions_T, *transform.numbers)
    return turned_heads(q_THD, q_weight_W, *rest), turned_heads(k_TKD, k_weight_W, *rest), v_TKE
