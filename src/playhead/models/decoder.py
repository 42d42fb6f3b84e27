"""The decoder: every family is this class with another spec.

Shapes: T tokens, N rows whose logits are wanted, M hidden, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from playhead.layers.attention import AttentionBlock
from playhead.layers.linear import Linear
from playhead.layers.mlp import GatedMlp
from playhead.layers.moe import MoeMlp
from playhead.layers.norm import Norm
from playhead.layers.rope import Rope
from playhead.layers.spec import MoeSpec, RopeSpec
from playhead.models.context import ForwardContext
from playhead.models.spec import LayerSpec, ModelSpec, Placement

CosSin = tuple[torch.Tensor, torch.Tensor]

PRE_NORMS = (Placement.PRE, Placement.SANDWICH, Placement.PARALLEL)
POST_NORMS = (Placement.POST, Placement.SANDWICH)


class DecoderLayer(nn.Module):
    """One layer. Norms that its placement does not have are None."""

    mlp: GatedMlp | MoeMlp
    pre_attention_norm: Norm | None
    post_attention_norm: Norm | None
    pre_mlp_norm: Norm | None
    post_mlp_norm: Norm | None

    def __init__(
        self, index: int, spec: LayerSpec, hidden_size: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()

        def norm(exists: bool) -> Norm | None:
            return Norm(spec.norm, hidden_size, dtype=dtype, device=device) if exists else None

        self.index, self.spec = index, spec
        self.attention = AttentionBlock(spec.attention, hidden_size, spec.norm, dtype=dtype, device=device)
        if isinstance(spec.mlp, MoeSpec):
            self.mlp = MoeMlp(spec.mlp, hidden_size, dtype=dtype, device=device)
        else:
            self.mlp = GatedMlp(spec.mlp, hidden_size, dtype=dtype, device=device)
        self.pre_attention_norm = norm(spec.placement in PRE_NORMS)
        self.pre_mlp_norm = norm(spec.placement in PRE_NORMS and spec.placement is not Placement.PARALLEL)
        self.post_attention_norm = norm(spec.placement in POST_NORMS)
        self.post_mlp_norm = norm(spec.placement in POST_NORMS)

    def forward(self, h_TM: torch.Tensor, ctx: ForwardContext, rope: CosSin | None) -> torch.Tensor:
        normed_TM = _normed(h_TM, self.pre_attention_norm)
        q_THD, k_TKD, v_TKE = self.attention.project(normed_TM, rope)
        attended_TM = self.attention.output(ctx.attend(self.index, q_THD, k_TKD, v_TKE))
        if self.spec.placement is Placement.PARALLEL:
            mixed_TM: torch.Tensor = h_TM + attended_TM + self.mlp(normed_TM)
            return mixed_TM
        h_TM = _added(h_TM, attended_TM, self.post_attention_norm)
        return _added(h_TM, self.mlp(_normed(h_TM, self.pre_mlp_norm)), self.post_mlp_norm)


def _normed(x_TM: torch.Tensor, norm: Norm | None) -> torch.Tensor:
    if norm is None:
        return x_TM
    normed_TM: torch.Tensor = norm(x_TM)
    return normed_TM


def _added(h_TM: torch.Tensor, x_TM: torch.Tensor, norm: Norm | None) -> torch.Tensor:
    return h_TM + x_TM if norm is None else norm.added_to(h_TM, x_TM)


class Decoder(nn.Module):
    """`embed`, `layers` and `head` over packed tokens; the three are separate so that each can be captured alone.

    Memory is taken but not written: a loader fills it.
    """

    lm_head: Linear | None

    def __init__(self, spec: ModelSpec, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.spec, self.dtype = spec, dtype
        embedding_VM = torch.empty(spec.vocab_size, spec.hidden_size, dtype=dtype, device=device)
        self.embedding_VM = nn.Parameter(embedding_VM, requires_grad=False)
        # Rounded to the weights' dtype: Gemma was trained with sqrt(hidden) as its embeddings' dtype can say it.
        self.embed_scale = float(torch.tensor(spec.embed_scale, dtype=dtype))
        rope_specs = dict.fromkeys(layer.attention.rope for layer in spec.layers if layer.attention.rope is not None)
        self._ropes = {rope: Rope(rope, device=device) for rope in rope_specs}
        self._stack = tuple(
            DecoderLayer(i, layer, spec.hidden_size, dtype=dtype, device=device) for i, layer in enumerate(spec.layers)
        )
        # Registered beside the typed collections, so that `to` and `named_parameters` reach them.
        self.ropes = nn.ModuleList(self._ropes.values())
        self.blocks = nn.ModuleList(self._stack)
        self.final_norm = Norm(spec.final_norm, spec.hidden_size, dtype=dtype, device=device)
        self.lm_head = None
        if not spec.is_tied:
            self.lm_head = Linear(spec.hidden_size, spec.vocab_size, has_bias=False, dtype=dtype, device=device)

    @property
    def sinks(self) -> tuple[torch.Tensor | None, ...]:
        """The sink logits of each layer that has them: whoever attends needs these."""
        return tuple(block.attention.sinks_H for block in self._stack)

    def embed(self, ids_T: torch.Tensor) -> torch.Tensor:
        h_TM = F.embedding(ids_T, self.embedding_VM)
        return h_TM if self.embed_scale == 1.0 else h_TM * self.embed_scale

    def layers(self, h_TM: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        rotations: dict[RopeSpec | None, CosSin | None] = {None: None}
        rotations |= {spec: rope(ctx.positions_T) for spec, rope in self._ropes.items()}
        for block in self._stack:
            h_TM = block(h_TM, ctx, rotations[block.spec.attention.rope])
        return h_TM

    def head(self, h_NM: torch.Tensor) -> torch.Tensor:
        """Logits in float32 of rows that came out of `layers`; the final norm is here because only they need it."""
        weight_VM = self.embedding_VM if self.lm_head is None else self.lm_head.weight
        logits_NV = F.linear(self.final_norm(h_NM), weight_VM).float()
        if self.spec.logit_scale != 1.0:
            logits_NV = logits_NV * self.spec.logit_scale
        if self.spec.final_softcap is not None:
            logits_NV = torch.tanh(logits_NV / self.spec.final_softcap) * self.spec.final_softcap
        return logits_NV
