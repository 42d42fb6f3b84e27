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
    sizes=replace(LLAMA.sizes, intermediate=14_336, kv_heads=8, context=131_072),
    defaults={**LLAMA.defaults, "sliding_window": 4096},
    qkv_bias=False,
    output_bias=False,
    mlp_bias=False,
)

MINISTRAL = replace(MISTRAL, model_type="ministral", architectures=("MinistralForCausalLM",))
