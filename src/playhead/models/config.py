"""Typed reads from a model's config.json. The file is foreign: every value is checked, every error names its key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from playhead.models.errors import CheckpointError, UnsupportedModelError

MAX_CONFIG_BYTES = 4 << 20
# Larger than any model there is, small enough that a hostile config cannot make us build a list of a billion layers.
MAX_SIZE = 1 << 24
MAX_LAYERS = 1024


class ConfigReader:
    """One level of a config: the file's own values over what its family assumes for absent keys."""

    def __init__(self, values: Mapping[str, object], defaults: Mapping[str, object] | None = None) -> None:
        self._values = {**(defaults or {}), **values}

    def has(self, key: str) -> bool:
        return self._values.get(key) is not None

    def value(self, key: str) -> object:
        return self._values.get(key)

    def size(self, key: str, at_most: int = MAX_SIZE) -> int:
        value = self._values.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= at_most:
            raise UnsupportedModelError(key, value, [f"an integer from 1 to {at_most}"])
        return value

    def size_or(self, key: str, fallback: int) -> int:
        return self.size(key) if self.has(key) else fallback

    def number(self, key: str) -> float:
        value = self._values.get(key)
        # JSON has no infinity, but Python reads one; a NaN theta would only show as NaN logits.
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < float("inf"):
            raise UnsupportedModelError(key, value, ["a finite number"])
        return float(value)

    def number_or(self, key: str, fallback: float) -> float:
        return self.number(key) if self.has(key) else fallback

    def number_or_none(self, key: str) -> float | None:
        return self.number(key) if self.has(key) else None

    def flag(self, key: str) -> bool:
        value = self._values.get(key) or False
        if not isinstance(value, bool):
            raise UnsupportedModelError(key, value, ["true", "false"])
        return value

    def text_or(self, key: str, fallback: str) -> str:
        value = self._values.get(key)
        if value is None:
            return fallback
        if not isinstance(value, str):
            raise UnsupportedModelError(key, value, ["a string"])
        return value

    def texts_or_none(self, key: str) -> tuple[str, ...] | None:
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise UnsupportedModelError(key, value, ["a list of strings"])
        return tuple(value)

    def table_or_none(self, key: str) -> ConfigReader | None:
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise UnsupportedModelError(key, value, ["a table"])
        return ConfigReader(value)

    def keys(self) -> tuple[str, ...]:
        return tuple(key for key in self._values if self.has(key))

    def require(self, key: str, allowed: tuple[object, ...]) -> None:
        """Refuse a value the decoder has no code for. An absent key is the family's own default and passes."""
        if self.has(key) and self._values[key] not in allowed:
            raise UnsupportedModelError(key, self._values[key], allowed)


def read_json(path: Path) -> dict[str, object]:
    """The object in a small JSON file of a checkpoint directory."""
    where = path.name
    if not path.is_file():
        raise CheckpointError(where, "no such file", "a file beside the weights", "Check the model's directory.")
    if path.stat().st_size > MAX_CONFIG_BYTES:
        found = f"{path.stat().st_size} bytes"
        raise CheckpointError(where, found, f"at most {MAX_CONFIG_BYTES}", "This is not a config; download it again.")
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CheckpointError(where, f"not JSON ({error})", "an object", "Download it again.") from None
    if not isinstance(value, dict):
        raise CheckpointError(where, f"a {type(value).__name__}", "an object", "Download it again.")
    return value
