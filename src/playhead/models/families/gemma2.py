"""Gemma 2: window and full layers in turn, four norms per layer, softcaps on attention and on the logits."""

from __future__ import annotations

from dataclasses import replace

from playhead.models.families.gemma import GEMMA
from playhead.models.family import full_every
from playhead.models.spec import Placement

GEMMA2 = replace(
    GEMMA,
    model_type="gemma2",
    architectures=("Gemma2ForCausalLM",),
    layer_types=full_every(2),
    reads_layer_types=True,
    defaults={
        **GEMMA.defaults,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "final_logit_softcapping": 30.0,
        "attn_logit_softcapping": 50.0,
    },
    placement=Placement.SANDWICH,
    activation_key="hidden_activation",
    activation_aliases={},
    attention_softcap_key="attn_logit_softcapping",
    final_softcap_key="final_logit_softcapping",
    overflows_float16=True,
    scale_key="query_pre_attn_scalar",
)
