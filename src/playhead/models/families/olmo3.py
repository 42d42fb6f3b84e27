"""OLMo 3: OLMo 2 with windows in three layers of four, rope scaled in full layers only."""

from __future__ import annotations

from dataclasses import replace

from playhead.models.families.olmo2 import OLMO2
from playhead.models.family import full_every

OLMO3 = replace(
    OLMO2,
    model_type="olmo3",
    architectures=("Olmo3ForCausalLM",),
    layer_types=full_every(4),
    defaults={**OLMO2.defaults, "sliding_window": 4096},
    rope_theta=500_000.0,
    has_rope_per_layer_type=True,
    # Window layers keep this base even where the config names another: `rope_theta` is read for full layers alone.
    window_rope_theta=500_000.0,
)
