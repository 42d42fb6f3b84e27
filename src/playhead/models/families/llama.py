"""Llama and everything that only changed its numbers (SmolLM2 among them)."""

from __future__ import annotations

from playhead.models.family import Family, Sizes

LLAMA = Family(
    model_type="llama",
    architectures=("LlamaForCausalLM",),
    sizes=Sizes(vocab=32_000, hidden=4096, intermediate=11_008, layers=32, heads=32, context=2048),
    defaults={"hidden_act": "silu", "rms_norm_eps": 1e-6},
    mlp_bias="mlp_bias",
)
