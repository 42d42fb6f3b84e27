"""The models that are served."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class ModelCard(Struct, frozen=True, kw_only=True):
    """One model. `max_model_len` is the longest context, prompt and answer together."""

    id: str
    created: int
    object: Literal["model"] = "model"
    owned_by: str = "playhead"
    max_model_len: int


class ModelList(Struct, frozen=True, kw_only=True):
    """All models that are served."""

    data: list[ModelCard]
    object: Literal["list"] = "list"
