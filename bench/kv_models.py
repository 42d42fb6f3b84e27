"""KV shapes of public models, layer by layer, as their configs give them."""

from __future__ import annotations

from playhead.kv.geometry import LayerKV


def alternating(
    *, num_layers: int, full_every: int, window: int, num_kv_heads: int, head_dim: int
) -> tuple[LayerKV, ...]:
    """Layers of one shape where every `full_every`-th one is full: Gemma 3 has five window layers, then a full one."""

    def layer(index: int) -> LayerKV:
        is_full = index % full_every == full_every - 1
        return LayerKV(
            window=None if is_full else window, num_kv_heads=num_kv_heads, k_head_dim=head_dim, v_head_dim=head_dim
        )

    return tuple(layer(index) for index in range(num_layers))


def mimo_v2_flash() -> tuple[LayerKV, ...]:
    """9 full layers with 4 kv heads and 39 window layers with 8; keys of 192, values of 128.

    The exact places of the full layers do not change what a token costs; the first and every sixth are taken here.
    """
    full_layers = {0, 5, 11, 17, 23, 29, 35, 41, 47}
    return tuple(
        LayerKV(
            window=None if index in full_layers else 128,
            num_kv_heads=4 if index in full_layers else 8,
            k_head_dim=192,
            v_head_dim=128,
        )
        for index in range(48)
    )


def models() -> dict[str, tuple[LayerKV, ...]]:
    """Name -> layers, in the order of the scorecard."""
    return {
        "Gemma-3-1B": alternating(num_layers=26, full_every=6, window=512, num_kv_heads=1, head_dim=256),
        "Gemma-3-4B": alternating(num_layers=34, full_every=6, window=1024, num_kv_heads=4, head_dim=256),
        "Gemma-3-12B": alternating(num_layers=48, full_every=6, window=1024, num_kv_heads=8, head_dim=256),
        "Gemma-3-27B": alternating(num_layers=62, full_every=6, window=1024, num_kv_heads=16, head_dim=128),
        "gpt-oss-20b": alternating(num_layers=24, full_every=2, window=128, num_kv_heads=8, head_dim=64),
        "MiMo-V2-Flash": mimo_v2_flash(),
    }
