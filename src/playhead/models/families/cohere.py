"""Cohere: attention and MLP side by side on one LayerNorm, interleaved rope."""

from __future__ import annotations

from playhead.layers.spec import NormKind
from playhead.models.family import Family, all_full
from playhead.models.spec import Placement

COHERE = Family(
    model_type="cohere",
    architectures=("CohereForCausalLM",),
    layer_types=all_full,
    reads_layer_types=False,
    defaults={
        "vocab_size": 256_000,
        "hidden_size": 8192,
        "intermediate_size": 22_528,
        "num_hidden_layers": 40,
        "num_attention_heads": 64,
        "hidden_act": "silu",
        "max_position_embeddings": 8192,
        "layer_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "logit_scale": 0.0625,
    },
    required={"use_qk_norm": (False,)},
    norm=NormKind.LAYERNORM,
    norm_eps_key="layer_norm_eps",
    placement=Placement.PARALLEL,
    logit_scale_key="logit_scale",
    rope_theta=500_000.0,
    has_interleaved_rope=True,
)
