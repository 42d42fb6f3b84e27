"""Mistral: Llama with a window in every layer, or in none. Ministral: the layers say which."""

from __future__ import annotations

from dataclasses import replace

from playhead.models.families.llama import LLAMA
from playhead.models.family import all_windowed

MISTRAL = replace(
    LLAMA,
    model_type="mistral",
    architectures=("MistralForCausalLM",),
    layer_types=all_windowed,
    reads_layer_types=True,
    defaults={
        **LLAMA.defaults,
        "intermediate_size": 14_336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131_072,
        "sliding_window": 4096,
    },
    qkv_bias=False,
    output_bias=False,
    mlp_bias=False,
)

MINISTRAL = replace(MISTRAL, model_type="ministral", architectures=("MinistralForCausalLM",))
