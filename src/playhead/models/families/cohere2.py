"""Cohere 2: attention and MLP side by side on one LayerNorm, interleaved rope in window layers, none in full ones."""

from __future__ import annotations

from playhead.layers.spec import NormKind
from playhead.models.family import Family, RopeOn, full_every
from playhead.models.spec import Placement

COHERE2 = Family(
    model_type="cohere2",
    architectures=("Cohere2ForCausalLM",),
    layer_types=full_every(4, key="sliding_window_pattern"),
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
        "sliding_window": 4096,
    },
    required={
        "use_qk_norm": (False,),
        "use_parallel_block": (True,),
        "use_gated_activation": (True,),
        "position_embedding_type": ("rope_gptj",),
    },
    norm=NormKind.LAYERNORM,
    norm_eps_key="layer_norm_eps",
    placement=Placement.PARALLEL,
    has_logit_scale=True,
    rope_on=RopeOn.WINDOWED,
    has_interleaved_rope=True,
)
