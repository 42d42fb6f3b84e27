"""Gemma: Llama with 1 + w norms, embeddings times the root of the hidden size, and GELU."""

from __future__ import annotations

from playhead.layers.spec import NormKind
from playhead.models.family import Family, Sizes

GEMMA = Family(
    model_type="gemma",
    architectures=("GemmaForCausalLM",),
    sizes=Sizes(
        vocab=256_000, hidden=3072, intermediate=24_576, layers=28, heads=16, kv_heads=16, head_dim=256, context=8192
    ),
    defaults={"hidden_act": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6, "tie_word_embeddings": True},
    required={"use_bidirectional_attention": (False,)},
    norm=NormKind.RMS1P,
    activation_aliases={"gelu": "gelu_pytorch_tanh"},  # what the published configs say and do not mean
    has_scaled_embedding=True,
)
