"""Qwen 2: Llama with a bias on q, k and v. Qwen 3: qk-norm per head instead. Windows are usually switched off."""

from __future__ import annotations

from dataclasses import replace

from playhead.layers.spec import QKNorm
from playhead.models.families.llama import LLAMA
from playhead.models.family import windowed_from_max_window_layers

QWEN2 = replace(
    LLAMA,
    model_type="qwen2",
    architectures=("Qwen2ForCausalLM",),
    layer_types=windowed_from_max_window_layers,
    has_window_switch=True,
    sizes=replace(LLAMA.sizes, vocab=151_936, intermediate=22_016, kv_heads=32, context=32_768),
    defaults={
        **LLAMA.defaults,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
    qkv_bias=True,
    output_bias=False,
    mlp_bias=False,
)

QWEN3 = replace(
    QWEN2,
    model_type="qwen3",
    architectures=("Qwen3ForCausalLM",),
    sizes=replace(QWEN2.sizes, head_dim=128),
    qk_norm=QKNorm.HEAD,
    qkv_bias="attention_bias",
    output_bias="attention_bias",
)
