"""Gemma 2: window and full layers in turn, four norms per layer, softcaps on attention and on the logits."""

from __future__ import annotations

from playhead.layers.spec import NormKind
from playhead.models.family import Family, full_every
from playhead.models.spec import Placement

GEMMA2 = Family(
    model_type="gemma2",
    architectures=("Gemma2ForCausalLM",),
    layer_types=full_every(2),
    defaults={
        "vocab_size": 256_000,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "final_logit_softcapping": 30.0,
        "attn_logit_softcapping": 50.0,
    },
    required={"use_bidirectional_attention": (False,)},
    norm=NormKind.RMS1P,
    placement=Placement.SANDWICH,
    activation_key="hidden_activation",
    attention_softcap_key="attn_logit_softcapping",
    final_softcap_key="final_logit_softcapping",
    overflows_float16=True,
    scale_key="query_pre_attn_scalar",
    has_scaled_embedding=True,
)
