"""Phi 3 and Phi 4: Llama with fused projections, a window in every layer or in none, rope on a part of each head."""

from __future__ import annotations

from dataclasses import replace

from playhead.models.families.llama import LLAMA
from playhead.models.family import all_windowed

PHI3 = replace(
    LLAMA,
    model_type="phi3",
    architectures=("Phi3ForCausalLM",),
    names={"attention.qkv": ("self_attn.qkv_proj",), "mlp.gate_up": ("mlp.gate_up_proj",)},
    layer_types=all_windowed,
    reads_layer_types=False,
    sizes=replace(LLAMA.sizes, vocab=32_064, hidden=3072, intermediate=8192, context=4096),
    defaults={**LLAMA.defaults, "rms_norm_eps": 1e-5},
    qkv_bias=False,
    output_bias=False,
    mlp_bias=False,
    rope_types=("default",),  # the long checkpoints have longrope, by that name, by "su" or by "yarn"
    has_partial_rope=True,
)
