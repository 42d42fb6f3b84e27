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
    sizes=replace(GEMMA.sizes, hidden=2304, intermediate=9216, layers=26, heads=8, kv_heads=4),
    defaults={
        **GEMMA.defaults,
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
