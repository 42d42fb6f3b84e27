"""Gemma 3: five window layers to one full, qk-norm per head, another rope base in window layers.

The larger checkpoints also see images; their decoder is the same under a prefix, and only it is loaded.
"""

from __future__ import annotations

from dataclasses import replace

from playhead.layers.spec import QKNorm
from playhead.models.families.gemma2 import GEMMA2
from playhead.models.family import full_every

GEMMA3_TEXT = replace(
    GEMMA2,
    model_type="gemma3_text",
    architectures=("Gemma3ForCausalLM",),
    layer_types=full_every(6, key="sliding_window_pattern"),
    sizes=replace(GEMMA2.sizes, vocab=262_208, context=131_072),
    defaults={**GEMMA2.defaults, "final_logit_softcapping": None, "attn_logit_softcapping": None},
    # The reference carries an attention softcap in its config and never applies it: both answers would be wrong.
    required={**GEMMA2.required, "attn_logit_softcapping": ()},
    qk_norm=QKNorm.HEAD,
    attention_softcap_key=None,
    rope_theta=1_000_000.0,
    window_rope_theta_key="rope_local_base_freq",
    window_rope_theta=10_000.0,
    has_rope_per_layer_type=True,
)

GEMMA3 = replace(
    GEMMA3_TEXT,
    model_type="gemma3",
    architectures=("Gemma3ForConditionalGeneration",),
    text_key="text_config",
    weight_prefixes=("model.language_model.", "language_model.model.", "language_model."),
    head_names=("lm_head.weight", "language_model.lm_head.weight"),
    # The reference's model with images reads the cap of its text part and never applies it.
    final_softcap_key=None,
    ignored_prefixes=("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector."),
)
