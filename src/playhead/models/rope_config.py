"""Rope as configs write it, old and new, turned into one spec per layer type.

The rules are those of transformers 5, with which tests/parity compares: where a config has both, `rope_scaling`, the
old name, wins over `rope_parameters`, the new one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from playhead.layers.spec import LinearScaling, Llama3Scaling, RopeSpec, Scaling, YarnScaling
from playhead.models.config import ConfigReader
from playhead.models.family import FULL_LAYER, WINDOW_LAYER, Family

NEW, OLD = "rope_parameters", "rope_scaling"
ORIGINAL_CONTEXT, PARTIAL = "original_max_position_embeddings", "partial_rotary_factor"
UNSCALED = {"rope_type": "default"}

# "dynamic" changes its base when a sequence outgrows `max_position_embeddings`, and no sequence here does.
ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn")
YARN_KEYS = ("attention_factor", "beta_fast", "beta_slow", "truncate", "mscale", "mscale_all_dim")
KEYS = {"rope_type", "type", "rope_theta", PARTIAL, "factor", ORIGINAL_CONTEXT, "low_freq_factor", "high_freq_factor"}
KEYS.update(YARN_KEYS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeTable:
    """One rope as a config has it. `theta`, `truncate` and `original_context` are what holds outside the table."""

    values: ConfigReader
    theta: float
    truncate: bool
    original_context: int | None = None


def read_ropes(family: Family, config: ConfigReader, head_dim: int) -> dict[str, RopeSpec]:
    """The rope of window layers and of full layers."""
    if family.has_rope_per_layer_type:
        tables = {WINDOW_LAYER: _window_table(family, config), FULL_LAYER: _full_table(family, config)}
    else:
        tables = dict.fromkeys((WINDOW_LAYER, FULL_LAYER), _only_table(family, config))
    ropes = {table: _read_rope(family, config, table, head_dim) for table in dict.fromkeys(tables.values())}
    return {layer_type: ropes[table] for layer_type, table in tables.items()}


def _only_table(family: Family, config: ConfigReader) -> RopeTable:
    """One table for all layers. `rope_scaling` replaces `rope_parameters` unless it is empty."""
    new, old = config.table_or_none(NEW), config.table_or_none(OLD)
    values = config.table(NEW, family.default_rope) if new is None else new
    if old is not None and old.keys():
        values = old
    return RopeTable(
        values=values,
        theta=config.number_or("rope_theta", family.rope_theta),
        truncate=_flag_or_true(values, "truncate"),
        # Some models save the length they were trained for beside the table; it comes before the one inside.
        original_context=config.size(ORIGINAL_CONTEXT) if config.has(ORIGINAL_CONTEXT) else None,
    )


def _window_table(family: Family, config: ConfigReader) -> RopeTable:
    theta = family.window_rope_theta
    if family.window_rope_theta_key is not None:
        theta = config.number_or(family.window_rope_theta_key, theta)
    return RopeTable(values=_nested(config, WINDOW_LAYER), theta=theta, truncate=_outer_truncate(config))


def _full_table(family: Family, config: ConfigReader) -> RopeTable:
    """The full layers' own table, with the values of `rope_scaling` over it."""
    values, old = _nested(config, FULL_LAYER), config.table_or_none(OLD)
    if old is not None:
        new = config.table_or_none(NEW)
        if new is not None and not new.has(FULL_LAYER):
            config.refuse(OLD, list(old.keys()), [f"none where {NEW} has no {FULL_LAYER}"])
        values = values.updated(old)
    theta = config.number_or("rope_theta", family.rope_theta)
    return RopeTable(values=values, theta=theta, truncate=_outer_truncate(config))


def _nested(config: ConfigReader, layer_type: str) -> ConfigReader:
    """A layer type's own table, or the unscaled one. Values beside these tables concern no layer."""
    new = config.table_or_none(NEW)
    nested = None if new is None else new.table_or_none(layer_type)
    return config.table(NEW, UNSCALED) if nested is None else nested


def _outer_truncate(config: ConfigReader) -> bool:
    """Where every layer type has a table, the reference still looks for `truncate` beside those tables."""
    new = config.table_or_none(NEW)
    return True if new is None else _flag_or_true(new, "truncate")


def _flag_or_true(table: ConfigReader, key: str) -> bool:
    return table.flag(key) if table.has(key) else True


def _read_rope(family: Family, config: ConfigReader, table: RopeTable, head_dim: int) -> RopeSpec:
    values = table.values
    kind, kinds = values.text_or("rope_type", values.text_or("type", "default")), family.rope_types or ROPE_TYPES
    if kind not in kinds:
        values.refuse("rope_type", kind, kinds)
        kind = "default"
    if unknown := sorted(set(values.keys()) - KEYS):
        values.refuse(unknown[0], values.value(unknown[0]), [f"no such key; known are {', '.join(sorted(KEYS))}"])
    if config.is_sound and head_dim % 2:
        config.refuse("head_dim", head_dim, ["an even number: rope turns pairs"])
    level = values if values.has(PARTIAL) else config
    partial = level.number_or(PARTIAL, 1.0)
    rotary_dim = int(head_dim * partial)
    if family.has_partial_rope:
        if config.is_sound and (rotary_dim < 2 or rotary_dim % 2):
            level.refuse(PARTIAL, partial, [f"a factor that leaves an even number of the {head_dim} dims of a head"])
    # The unscaled kind turns whole heads, whatever the factor says; the reference cannot run the others with a part.
    elif kind != "default" and config.is_sound and rotary_dim != head_dim:
        level.refuse(PARTIAL, partial, [f"1 with rope type {kind!r}"])
    return RopeSpec(
        theta=values.number_or("rope_theta", table.theta),
        rotary_dim=rotary_dim if family.has_partial_rope else head_dim,
        interleaved=family.has_interleaved_rope,
        scaling=_read_scaling(kind, config, table),
    )


def _read_scaling(kind: str, config: ConfigReader, table: RopeTable) -> Scaling | None:
    values = table.values
    if kind == "default":
        return None
    if kind in ("linear", "dynamic"):
        factor = values.number("factor")
        return LinearScaling(factor=factor) if kind == "linear" else None
    context = config.size("max_position_embeddings")
    original = table.original_context or values.size_or(ORIGINAL_CONTEXT, context)
    if kind == "llama3":
        low, high = values.number("low_freq_factor"), values.number("high_freq_factor")
        if config.is_sound and low >= high:
            values.refuse("low_freq_factor", low, [f"less than high_freq_factor, {high}"])
        return Llama3Scaling(
            factor=values.number("factor"), low_freq_factor=low, high_freq_factor=high, original_context=original
        )
    factor = values.number_or("factor", context / original)
    return YarnScaling(
        factor=factor,
        original_context=original,
        attention_factor=values.number_or("attention_factor", _yarn_attention_factor(values, factor)),
        beta_fast=values.number_or("beta_fast", 32.0),
        beta_slow=values.number_or("beta_slow", 1.0),
        truncate=table.truncate,
    )


def _yarn_attention_factor(table: ConfigReader, factor: float) -> float:
    """0.1 ln(factor) + 1, or a ratio of two such where a config weighs the logarithm."""

    def grown(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    mscale, mscale_all_dim = table.number_or("mscale", 0.0), table.number_or("mscale_all_dim", 0.0)
    return grown(mscale) / grown(mscale_all_dim) if mscale and mscale_all_dim else grown(1.0)
