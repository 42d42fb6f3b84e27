"""Llama and everything that only changed its numbers (SmolLM2 among them)."""

from __future__ import annotations

from playhead.models.family import Family, all_full

LLAMA = Family(
    model_type="llama",
    architectures=("LlamaForCausalLM",),
    layer_types=all_full,
    reads_layer_types=False,
    defaults={
        "vocab_size": 32_000,
        "hidden_size": 4096,
        "intermediate_size": 11_008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
    },
    mlp_bias="mlp_bias",
)
