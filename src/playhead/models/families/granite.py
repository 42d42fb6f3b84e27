"""Granite: Llama with a factor on the embeddings, on attention, on what is added to the residual and on the logits."""

from __future__ import annotations

from dataclasses import replace

from playhead.models.families.llama import LLAMA

FACTORS = ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")

GRANITE = replace(
    LLAMA,
    model_type="granite",
    architectures=("GraniteForCausalLM",),
    defaults={**LLAMA.defaults, **dict.fromkeys(FACTORS, 1.0)},
    embed_scale_key="embedding_multiplier",
    scale_key="attention_multiplier",
    scale_power=1.0,
    residual_scale_key="residual_multiplier",
    logit_divisor_key="logits_scaling",
)
