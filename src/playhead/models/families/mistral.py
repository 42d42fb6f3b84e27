"""Mistral: Llama with a window in every layer, or in none. Ministral: the layers say which."""

from __future__ import annotations

from dataclasses import replace

from playhead.models.family import Family, all_windowed

MISTRAL = Family(
    model_type="mistral",
    architectures=("MistralForCausalLM",),
    layer_types=all_windowed,
    defaults={
        "vocab_size": 32_000,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "hidden_act": "silu",
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-6,
        "sliding_window": 4096,
    },
    qkv_bias=False,
    output_bias=False,
)

MINISTRAL = replace(MISTRAL, model_type="ministral", architectures=("MinistralForCausalLM",))
