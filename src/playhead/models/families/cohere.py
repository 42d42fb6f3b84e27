"""Cohere: attention and MLP side by side on one LayerNorm, interleaved rope."""

from __future__ import annotations

from playhead.layers.spec import NormKind
from playhead.models.family import Family, Sizes
from playhead.models.spec import Placement

COHERE = Family(
    model_type="cohere",
    architectures=("CohereForCausalLM",),
    sizes=Sizes(vocab=256_000, hidden=8192, intermediate=22_528, layers=40, heads=64, context=8192),
    defaults={"hidden_act": "silu", "layer_norm_eps": 1e-5, "tie_word_embeddings": True, "logit_scale": 0.0625},
    required={"use_qk_norm": (False,)},
    norm=NormKind.LAYERNORM,
    norm_eps_key="layer_norm_eps",
    placement=Placement.PARALLEL,
    logit_scale_key="logit_scale",
    rope_theta=500_000.0,
    has_interleaved_rope=True,
)
