"""Rope as configs write it, old and new, turned into one spec per layer type."""

from __future__ import annotations

import math

from playhead.layers.spec import LinearScaling, Llama3Scaling, RopeSpec, YarnScaling
from playhead.models.config import ConfigReader
from playhead.models.errors import UnsupportedModelError
from playhead.models.family import FULL_LAYER, WINDOW_LAYER, Family

SCALINGS = ("default", "linear", "llama3", "yarn")

COMMON_KEYS = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
KEYS_OF = {
    # Absent values may be written out by whoever saved the config, so the unscaled kind allows what it ignores.
    "default": COMMON_KEYS | {"factor", "original_max_position_embeddings"},
    "linear": COMMON_KEYS | {"factor", "original_max_position_embeddings"},
    "llama3": COMMON_KEYS | {"factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"},
    "yarn": COMMON_KEYS
    | {"factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "truncate"}
    | {"mscale", "mscale_all_dim"},
}


def read_ropes(family: Family, config: ConfigReader, head_dim: int) -> dict[str, RopeSpec]:
    """The rope of window layers and of full layers.

    New configs have `rope_parameters`, flat or one table per layer type; old ones have `rope_theta` and `rope_scaling`,
    which for some families concerns full layers alone.
    """
    tables = config.table_or_none("rope_parameters")
    nested = tables is not None and bool({WINDOW_LAYER, FULL_LAYER} & set(tables.keys()))
    ropes = {}
    for layer_type in (WINDOW_LAYER, FULL_LAYER):
        theta = _default_theta(family, config, layer_type)
        if tables is not None and nested:
            table = tables.table_or_none(layer_type)
        elif tables is not None:
            table = tables
        else:
            table = config.table_or_none("rope_scaling")
            if family.scales_rope_on_full_only and layer_type == WINDOW_LAYER:
                table = None
        ropes[layer_type] = _read_rope(family, config, table or ConfigReader({}), theta, head_dim)
    return ropes


def _default_theta(family: Family, config: ConfigReader, layer_type: str) -> float:
    if layer_type == WINDOW_LAYER and family.window_rope_theta_key is not None:
        return config.number_or(family.window_rope_theta_key, family.window_rope_theta or family.rope_theta)
    return config.number_or("rope_theta", family.rope_theta)


def _read_rope(family: Family, config: ConfigReader, table: ConfigReader, theta: float, head_dim: int) -> RopeSpec:
    kind = table.text_or("rope_type", table.text_or("type", "default"))
    if kind not in SCALINGS:
        raise UnsupportedModelError("rope_type", kind, SCALINGS)
    if unknown := sorted(set(table.keys()) - KEYS_OF[kind]):
        raise UnsupportedModelError(f"rope parameters of type {kind!r}", unknown, sorted(KEYS_OF[kind]))
    theta = table.number_or("rope_theta", theta)
    partial = table.number_or("partial_rotary_factor", config.number_or("partial_rotary_factor", 1.0))
    rotary_dim = int(head_dim * partial)
    if rotary_dim < 2 or rotary_dim % 2 or rotary_dim > head_dim:
        raise UnsupportedModelError("partial_rotary_factor", partial, [f"an even part of head_dim {head_dim}"])
    if theta <= 0:
        raise UnsupportedModelError("rope_theta", theta, ["a positive number"])
    return RopeSpec(
        theta=theta,
        rotary_dim=rotary_dim,
        interleaved=family.has_interleaved_rope,
        scaling=_read_scaling(kind, config, table),
    )


def _read_scaling(
    kind: str, config: ConfigReader, table: ConfigReader
) -> LinearScaling | Llama3Scaling | YarnScaling | None:
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(factor=table.number("factor"))
    original = table.size_or("original_max_position_embeddings", config.size("max_position_embeddings"))
    if kind == "llama3":
        return Llama3Scaling(
            factor=table.number("factor"),
            low_freq_factor=table.number("low_freq_factor"),
            high_freq_factor=table.number("high_freq_factor"),
            original_context=original,
        )
    factor = table.number_or("factor", config.size("max_position_embeddings") / original)
    return YarnScaling(
        factor=factor,
        original_context=original,
        attention_factor=table.number_or("attention_factor", _yarn_attention_factor(table, factor)),
        beta_fast=table.number_or("beta_fast", 32.0),
        beta_slow=table.number_or("beta_slow", 1.0),
        truncate=table.flag("truncate") if table.has("truncate") else True,
    )


def _yarn_attention_factor(table: ConfigReader, factor: float) -> float:
    """0.1 ln(factor) + 1, or a ratio of two such where a config weighs the logarithm."""

    def grown(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    mscale, mscale_all_dim = table.number_or("mscale", 0.0), table.number_or("mscale_all_dim", 0.0)
    return grown(mscale) / grown(mscale_all_dim) if mscale and mscale_all_dim else grown(1.0)
