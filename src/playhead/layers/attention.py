"""What surrounds attention: projections, qk-norm and rope before it, the output projection after it.

Shapes: T tokens, M hidden, H heads, K kv heads, D head dim of q and k, E head dim of v.
"""

from __future__ import annotations

import torch
from torch import nn

from playhead.layers.linear import Linear
from playhead.layers.norm import Norm
from playhead.layers.rope import rotate
from playhead.layers.spec import AttentionSpec, NormSpec, QKNorm


class AttentionBlock(nn.Module):
    """`project` gives what attention reads, `output` takes what it gives; attention itself belongs to the caller."""

    q_norm: Norm | None
    k_norm: Norm | None
    sinks_H: nn.Parameter | None

    def __init__(
        self, spec: AttentionSpec, hidden_size: int, norm: NormSpec, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.spec = spec
        self.qkv = Linear(
            hidden_size,
            spec.q_size + spec.k_size + spec.v_size,
            has_bias=spec.has_qkv_bias,
            dtype=dtype,
            device=device,
        )
        self.out = Linear(
            spec.num_heads * spec.v_head_dim, hidden_size, has_bias=spec.has_output_bias, dtype=dtype, device=device
        )
        self.q_norm = self.k_norm = self.sinks_H = None
        if spec.qk_norm is not QKNorm.NONE:
            per_head = spec.qk_norm is QKNorm.HEAD
            self.q_norm = Norm(norm, spec.k_head_dim if per_head else spec.q_size, dtype=dtype, device=device)
            self.k_norm = Norm(norm, spec.k_head_dim if per_head else spec.k_size, dtype=dtype, device=device)
        if spec.has_sinks:
            self.sinks_H = nn.Parameter(torch.empty(spec.num_heads, dtype=dtype, device=device), requires_grad=False)

    def project(
        self, h_TM: torch.Tensor, rope: tuple[torch.Tensor, torch.Tensor] | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q_THD, k_TKD and v_TKE of these tokens. `rope` is the cos and sin of their positions."""
        spec = self.spec
        q, k, v = self.qkv(h_TM).split((spec.q_size, spec.k_size, spec.v_size), dim=-1)
        if spec.qk_norm is QKNorm.FULL:
            q, k = self._normalise(q, k)
        q_THD = q.view(-1, spec.num_heads, spec.k_head_dim)
        k_TKD = k.view(-1, spec.num_kv_heads, spec.k_head_dim)
        v_TKE = v.view(-1, spec.num_kv_heads, spec.v_head_dim)
        if spec.qk_norm is QKNorm.HEAD:
            q_THD, k_TKD = self._normalise(q_THD, k_TKD)
        if spec.rope is not None:
            assert rope is not None, "a layer with a rope spec is given cos and sin"
            q_THD = rotate(q_THD, *rope, interleaved=spec.rope.interleaved)
            k_TKD = rotate(k_TKD, *rope, interleaved=spec.rope.interleaved)
        return q_THD, k_TKD, v_TKE

    def _normalise(self, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        assert self.q_norm is not None, "built with qk-norm"
        assert self.k_norm is not None, "built with qk-norm"
        return self.q_norm(q), self.k_norm(k)

    def output(self, out_THE: torch.Tensor) -> torch.Tensor:
        projected_TM: torch.Tensor = self.out(out_THE.flatten(1))
        return projected_TM
