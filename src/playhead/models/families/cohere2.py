"""Cohere 2: Cohere with windows in three layers of four. The fourth is full and has no rope."""

from __future__ import annotations

from dataclasses import replace

from playhead.models.families.cohere import COHERE
from playhead.models.family import full_every, rope_in_window_layers

COHERE2 = replace(
    COHERE,
    model_type="cohere2",
    architectures=("Cohere2ForCausalLM",),
    layer_types=full_every(4, key="sliding_window_pattern"),
    defaults={**COHERE.defaults, "sliding_window": 4096},
    required={
        **COHERE.required,
        "use_parallel_block": (True,),
        "use_gated_activation": (True,),
        "position_embedding_type": ("rope_gptj",),
    },
    rope_theta=10_000.0,
    rope_on=rope_in_window_layers,
)
