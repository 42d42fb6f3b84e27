"""Docstrings as the site's reference shows them. mkdocs.yml names this file as an extension of griffe.

- A field of `SamplingParams` or `EngineConfig` is written as `declare(1.0, Parameter(...))`. The reference shows
  `temperature: float = 1.0`, its help and its range.
- Examples (`>>> ...`) and trees (`├── ...`) stand in docstrings as they are. The reference shows them as code.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from enum import Enum, StrEnum
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
        lines.append(f"On {'a GPU' if device == 'cuda' else 'a CPU'}: {shown(auto.value)} ({auto.why}).")
    return "\n\n".join(lines) or "See the class."


def shown(default: object) -> str:
    """A default as a user would write it: the word of a `StrEnum`, another enum's member by its name."""
    if isinstance(default, StrEnum):
        return repr(default.value)
    return f"{type(default).__name__}.{default.name}" if isinstance(default, Enum) else repr(default)


def as_markdown(docstring: str) -> str:
    """The docstring with its examples and trees fenced."""
    paragraphs = docstring.split("\n\n")
    for index, paragraph in enumerate(paragraphs):
        if paragraph.lstrip().startswith(">>> "):
            paragraphs[index] = f"```pycon\n{paragraph}\n```"
        elif "├── " in paragraph:
            paragraphs[index] = f"```text\n{paragraph}\n```"
    return "\n\n".join(paragraphs)


class Playhead(griffe.Extension):
    """Changes values and docstrings before pages are made of them."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        for path, owner in OWNERS.items():
            factories = {one.name: one.default_factory for one in fields(owner)}
            for declared in settings_of(owner):
                attribute, factory = pkg[f"{path}.{declared.name}"], factories[declared.name]
                default = declared.default if factory is MISSING else factory()
                attribute.value = shown(default)
                written = attribute.docstring.value if attribute.docstring else ""
                attribute.docstring = griffe.Docstring(f"{described(declared)}\n\n{written}", parent=attribute)
        fence(pkg)


def fence(owner: griffe.Object) -> None:
    """`as_markdown` for everything in a package."""
    if owner.docstring is not None:
        owner.docstring.value = as_markdown(owner.docstring.value)
    for member in owner.members.values():
        if not member.is_alias:
            fence(member)
