"""Shows settings in the reference as users see them: `temperature: float = 1.0`, its help, its range.

A field of `SamplingParams` or `EngineConfig` is written as `declare(1.0, Parameter(...))`. The site's reference is made
from the source by griffe, which would print that call. mkdocs.yml names this file as an extension of griffe.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from enum import Enum
from typing import Any

import griffe

from playhead.engine.config import EngineConfig
from playhead.sampling_params import SamplingParams
from playhead.settings import Declared, settings_of

OWNERS = {"sampling_params.SamplingParams": SamplingParams, "engine.config.EngineConfig": EngineConfig}


def described(declared: Declared) -> str:
    """The docstring of a setting: its help, what it may be, and what it becomes when it is left open."""
    setting = declared.setting
    lines = [f"{setting.help[:1].upper()}{setting.help[1:]}."] if setting.help else []
    if setting.take is None:
        lines.append(f"Allowed: {declared.wanted}{', or None' if declared.is_optional else ''}.")
    for device, auto in setting.auto.items():
        value = auto.value.value if isinstance(auto.value, Enum) else auto.value
        lines.append(f"On {'a GPU' if device == 'cuda' else 'a CPU'}: {value}, because {auto.why}.")
    return "\n\n".join(lines) or "See the class."


class Settings(griffe.Extension):
    """Replaces each declared field's value and docstring before signatures are made of them."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        for path, owner in OWNERS.items():
            factories = {one.name: one.default_factory for one in fields(owner)}
            for declared in settings_of(owner):
                attribute, factory = pkg[f"{path}.{declared.name}"], factories[declared.name]
                default = declared.default if factory is MISSING else factory()
                attribute.value = repr(default.value if isinstance(default, Enum) else default)
                written = attribute.docstring.value if attribute.docstring else ""
                attribute.docstring = griffe.Docstring(f"{described(declared)}\n\n{written}", parent=attribute)
