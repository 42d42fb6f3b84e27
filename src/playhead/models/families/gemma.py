"""Gemma: Llama with 1 + w norms, embeddings times the root of the hidden size, and GELU."""

from __future__ import annotations

from playhead.layers.spec import NormKind
from playhead.models.family import Family, all_full

GEMMA = Family(
    model_type="gemma",
    architectures=("GemmaForCausalLM",),
    layer_types=all_full,
    reads_layer_types=False,
    defaults={
        "vocab_size": 256_000,
        "hidden_size": 3072,
        "intermediate_size": 24_576,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "head_dim": 256,
        "hidden_act": "gelu_pytorch_tanh",
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
    },
    required={"use_bidirectional_attention": (False,)},
    norm=NormKind.RMS1P,
    activation_aliases={"gelu": "gelu_pytorch_tanh"},  # what the published configs say and do not mean
    has_scaled_embedding=True,
)
