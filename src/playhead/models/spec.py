"""What a decoder is, layer by layer. Built from a config once; everything after reads only this. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from playhead.layers.shard import Shard
from playhead.layers.spec import AttentionSpec, MlpSpec, MoeSpec, NormSpec, StoredAs


class Placement(Enum):
    """Where a layer's norms stand.

    PRE       h += attn(norm(h));  h += mlp(norm(h))
    POST      h += norm(attn(h));  h += norm(mlp(h))
    SANDWICH  h += norm(attn(norm(h)));  h += norm(mlp(norm(h)))
    PARALLEL  n = norm(h);  h += attn(n) + mlp(n)
    """

    PRE = "pre"
    POST = "post"
    SANDWICH = "sandwich"
    PARALLEL = "parallel"

    @property
    def norms(self) -> tuple[str, ...]:
        """A layer's norms, in the order they run."""
        pre, post = (self is not Placement.POST), (self in (Placement.POST, Placement.SANDWICH))
        second = pre and self is not Placement.PARALLEL
        found = {"pre_attention_norm": pre, "post_attention_norm": post, "pre_mlp_norm": second, "post_mlp_norm": post}
        return tuple(name for name, exists in found.items() if exists)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    attention: AttentionSpec
    mlp: MlpSpec | MoeSpec
    norm: NormSpec
    placement: Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A whole decoder. `max_context_tokens` is what it was trained for, not what memory allows.

    Logits are `softcap(logit_scale * head(norm(h)))`; `is_tied` heads use the embedding's weight. A rounded embedding
    scale is as exact as the weights' dtype.
    """

    family: str
    vocab_size: int
    hidden_size: int
    max_context_tokens: int
    layers: tuple[LayerSpec, ...]
    final_norm: NormSpec
    embed_scale: float = 1.0
    has_rounded_embed_scale: bool = False
    is_tied: bool = False
    logit_scale: float = 1.0
    final_softcap: float | None = None
    stored_as: StoredAs = StoredAs.PLAIN

    @property
    def has_experts(self) -> bool:
        return any(isinstance(layer.mlp, MoeSpec) for layer in self.layers)

    def share(self, shard: Shard) -> ModelSpec:
        """What one rank computes: its heads of every layer."""
        layers = (replace(layer, attention=shard.attention(layer.attention)) for layer in self.layers)
        return replace(self, layers=tuple(layers)) if shard.num_ranks > 1 else self
