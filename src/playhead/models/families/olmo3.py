"""OLMo 3: norms after the blocks, qk-norm over the whole projection, rope scaled in full layers only."""

from __future__ import annotations

from playhead.layers.spec import QKNorm
from playhead.models.family import Family, full_every
from playhead.models.spec import Placement

OLMO3 = Family(
    model_type="olmo3",
    architectures=("Olmo3ForCausalLM",),
    layer_types=full_every(4),
    defaults={
        "vocab_size": 50_304,
        "hidden_size": 4096,
        "intermediate_size": 11_008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "sliding_window": 4096,
    },
    placement=Placement.POST,
    qk_norm=QKNorm.FULL,
    rope_theta=500_000.0,
    has_rope_per_layer_type=True,
    # Window layers keep this base even where the config names another: `rope_theta` is read for full layers alone.
    window_rope_theta=500_000.0,
)
