"""Gemma 3: five window layers to one full, qk-norm per head, another rope base in window layers.

The larger checkpoints also see images; their decoder is the same under a prefix, and only it is loaded.
"""

from __future__ import annotations

from dataclasses import replace

from playhead.layers.spec import NormKind, QKNorm
from playhead.models.family import Family, full_every
from playhead.models.spec import Placement

GEMMA3_TEXT = Family(
    model_type="gemma3_text",
    architectures=("Gemma3ForCausalLM",),
    layer_types=full_every(6, key="sliding_window_pattern"),
    defaults={
        "vocab_size": 262_208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
    },
    # The reference carries an attention softcap in its config and never applies it: both answers would be wrong.
    required={"use_bidirectional_attention": (False,), "attn_logit_softcapping": ()},
    norm=NormKind.RMS1P,
    placement=Placement.SANDWICH,
    qk_norm=QKNorm.HEAD,
    activation_key="hidden_activation",
    final_softcap_key="final_logit_softcapping",
    overflows_float16=True,
    scale_key="query_pre_attn_scalar",
    has_scaled_embedding=True,
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
    weight_prefixes=("model.language_model.", "language_model.model."),
    head_names=("lm_head.weight", "language_model.lm_head.weight"),
    # The reference's model with images reads the cap of its text part and never applies it.
    final_softcap_key=None,
    ignored_prefixes=("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector."),
)
