"""Typed reads from a model's config.json. The file is foreign: every value is checked, every error names its key."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from playhead.errors import CheckpointError, UnsupportedModelError
from playhead.models.checkpoint.bounded_json import parse_json

MAX_CONFIG_BYTES = 16 << 20
MAX_CONFIG_VALUES = 1 << 19
"""An index of 91,000 tensors has 91,000 values in 9 MB."""

# Larger than any model there is, small enough that a hostile config cannot make us build a list of a billion layers.
MAX_SIZE = 1 << 24
MAX_LAYERS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The numbers a key may have. `least` and `most` belong to it, except that `above` excludes `least`."""

    least: float
    most: float
    is_whole: bool = False
    above: bool = False

    def holds(self, value: object) -> bool:
        """Whether this is such a number. NaN, infinities, booleans and texts never are."""
        if isinstance(value, bool) or not isinstance(value, int if self.is_whole else int | float):
            return False
        return self.least <= value <= self.most and not (self.above and value == self.least)

    def __str__(self) -> str:
        kind = "a whole number" if self.is_whole else "a number"
        start = f"above {self.least:g}" if self.above else f"from {self.least:.16g}"
        return f"{kind} {start} {'and at most' if self.above else 'to'} {self.most:.16g}"


def whole(least: int, most: int) -> Range:
    return Range(least=least, most=most, is_whole=True)


# Products of two such numbers, and quotients, stay finite in float32 and above zero.
POSITIVE = Range(least=1e-18, most=1e18)
# A variance is divided by its root: a number that float32 takes for zero divides by zero, and one is already far more
# than any model's.
EPS = Range(least=1e-30, most=1)
# The base of a geometric series of wavelengths: at 1 they are all equal, and yarn divides by the logarithm.
THETA = Range(least=1, most=1e18, above=True)

RANGES: Mapping[str, Range] = {
    "vocab_size": whole(1, MAX_SIZE),
    "hidden_size": whole(1, MAX_SIZE),
    "intermediate_size": whole(1, MAX_SIZE),
    "num_hidden_layers": whole(1, MAX_LAYERS),
    "num_attention_heads": whole(1, 1 << 16),
    "num_key_value_heads": whole(1, 1 << 16),
    "head_dim": whole(1, 1 << 16),
    "max_position_embeddings": whole(1, MAX_SIZE),
    "original_max_position_embeddings": whole(1, MAX_SIZE),
    "sliding_window": whole(1, (1 << 31) - 1),
    "sliding_window_pattern": whole(1, MAX_LAYERS),
    "max_window_layers": whole(0, MAX_LAYERS),
    "no_rope_layer_interval": whole(1, MAX_LAYERS),
    "num_local_experts": whole(1, 1 << 16),
    "num_experts_per_tok": whole(1, 1 << 16),
    "rms_norm_eps": EPS,
    "layer_norm_eps": EPS,
    "query_pre_attn_scalar": POSITIVE,
    "attn_logit_softcapping": POSITIVE,
    "final_logit_softcapping": POSITIVE,
    "logit_scale": POSITIVE,
    "logits_scaling": POSITIVE,
    "embedding_multiplier": POSITIVE,
    "residual_multiplier": POSITIVE,
    "attention_multiplier": POSITIVE,
    "swiglu_alpha": POSITIVE,
    "swiglu_limit": POSITIVE,
    "rope_theta": THETA,
    "rope_local_base_freq": THETA,
    "partial_rotary_factor": Range(least=0, most=1, above=True),
    "factor": POSITIVE,
    "low_freq_factor": POSITIVE,
    "high_freq_factor": POSITIVE,
    "attention_factor": POSITIVE,
    "beta_fast": POSITIVE,
    "beta_slow": POSITIVE,
    # Zero is how configs say that the logarithm is not weighed.
    "mscale": Range(least=0, most=1e18),
    "mscale_all_dim": Range(least=0, most=1e18),
}


class ConfigReader:
    """One level of a config: the file's own values over what its family assumes for absent keys.

    A value that cannot be used is reported to `problems`, and a usable one is given in its place: the reader goes on,
    so that a config's problems are all found at once. Whatever was built from it must not be used if there are any.
    """

    def __init__(
        self,
        values: Mapping[str, object],
        problems: list[UnsupportedModelError],
        *,
        defaults: Mapping[str, object] | None = None,
        path: str = "",
    ) -> None:
        self._defaults = dict(defaults or {})
        self._values, self._problems, self._path = {**self._defaults, **values}, problems, path

    def refuse(self, key: str, found: object, wanted: Iterable[object]) -> None:
        """Report a value that this decoder has no use for, once: several layers may read the same key."""
        if self._path + key not in [error.key for error in self._problems]:
            self._problems.append(UnsupportedModelError(self._path + key, found, wanted))

    @property
    def is_sound(self) -> bool:
        """Whether no value has been refused so far. Values that stand in for refused ones must not be compared."""
        return not self._problems

    def has(self, key: str) -> bool:
        return self._values.get(key) is not None

    def value(self, key: str) -> object:
        return self._values.get(key)

    def size(self, key: str) -> int:
        return int(self._in_range(key, self._values.get(key)))

    def size_or(self, key: str, fallback: int) -> int:
        return self.size(key) if self.has(key) else fallback

    def number(self, key: str) -> float:
        return float(self._in_range(key, self._values.get(key)))

    def number_or(self, key: str, fallback: float) -> float:
        return self.number(key) if self.has(key) else fallback

    def number_or_none(self, key: str) -> float | None:
        return self.number(key) if self.has(key) else None

    def _in_range(self, key: str, value: object) -> float:
        """The value if its key's range has it; otherwise the family's default, or the least of the range."""
        allowed = RANGES[key]
        if isinstance(value, int | float) and allowed.holds(value):
            return value
        self.refuse(key, value, [allowed])
        default = self._defaults.get(key)
        if isinstance(default, int | float) and allowed.holds(default):
            return default
        return min(math.floor(allowed.least) + 1, allowed.most)

    def flag(self, key: str) -> bool:
        value = self._values.get(key) or False
        if not isinstance(value, bool):
            self.refuse(key, value, ["true", "false"])
            return False
        return value

    def text_or(self, key: str, fallback: str) -> str:
        value = self._values.get(key)
        if value is None:
            return fallback
        if not isinstance(value, str):
            self.refuse(key, value, ["a string"])
            return fallback
        return value

    def texts_or_none(self, key: str) -> tuple[str, ...] | None:
        found = self._list_or_none(key, lambda item: isinstance(item, str), "a list of strings")
        return None if found is None else tuple(map(str, found))

    def bits_or_none(self, key: str) -> tuple[bool, ...] | None:
        """A list of zeros and ones."""
        found = self._list_or_none(key, lambda item: item in (0, 1), "a list of zeros and ones")
        return None if found is None else tuple(map(bool, found))

    def _list_or_none(self, key: str, is_item: Callable[[object], bool], wanted: str) -> list[object] | None:
        value = self._values.get(key)
        if value is None or (isinstance(value, list) and all(map(is_item, value))):
            return value
        self.refuse(key, value, [wanted])
        return None

    def table_or_none(self, key: str) -> ConfigReader | None:
        value = self._values.get(key)
        if isinstance(value, Mapping):
            return self.table(key, value)
        if value is not None:
            self.refuse(key, value, ["a table"])
        return None

    def table(self, key: str, values: Mapping[str, object]) -> ConfigReader:
        """A table that this config means without writing it; its problems are reported under `key`."""
        return ConfigReader(values, self._problems, path=f"{self._path}{key}.")

    def updated(self, other: ConfigReader) -> ConfigReader:
        """This table with the other's values over its own."""
        return ConfigReader({**self._values, **other._values}, self._problems, path=other._path)

    def keys(self) -> tuple[str, ...]:
        return tuple(key for key in self._values if self.has(key))

    def require(self, key: str, allowed: tuple[object, ...]) -> None:
        """Refuse a value the decoder has no code for. An absent key is the family's own default and passes."""
        if self.has(key) and self._values[key] not in allowed:
            self.refuse(key, self._values[key], allowed or ["its absence"])


def read_json(path: Path) -> dict[str, object]:
    """The object in a small JSON file of a checkpoint directory."""
    where = path.name
    if not path.is_file():
        raise CheckpointError(where, "no such file", "a file beside the weights", "Check the model's directory.")
    if path.stat().st_size > MAX_CONFIG_BYTES:
        found = f"{path.stat().st_size} bytes"
        raise CheckpointError(where, found, f"at most {MAX_CONFIG_BYTES}", "This is not a config; download it again.")
    try:
        value = parse_json(path.read_bytes(), max_values=MAX_CONFIG_VALUES)
    except ValueError as error:
        raise CheckpointError(where, f"not JSON ({error})", "an object", "Download it again.") from None
    if not isinstance(value, dict):
        raise CheckpointError(where, f"a {type(value).__name__}", "an object", "Download it again.")
    return value
