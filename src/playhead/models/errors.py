"""Errors about models and their files.

PlayheadError
├── UnsupportedModelError   the config asks for something this decoder does not compute
├── CheckpointError         files and model description disagree, or a file is damaged
└── ChatTemplateError       a chat template refused its messages, or was refused itself
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from playhead.errors import PlayheadError
from playhead.schedule.sampling_params import shown

MAX_LISTED = 8


class UnsupportedModelError(PlayheadError):
    """The config asks for something this decoder does not compute."""

    def __init__(self, key: str, found: object, supported: Iterable[object], fix: str = "") -> None:
        listed = ", ".join(str(value) for value in supported)
        value = f"{found!r:.200}" if isinstance(found, str) else shown(found)
        super().__init__(f"config key {key!r}: found {value}; supported: {listed}.{' ' + fix if fix else ''}")
        self.key, self.found = key, found

    def with_more(self, keys: Sequence[str]) -> UnsupportedModelError:
        """The same error, with the names of further keys that are wrong too."""
        error = UnsupportedModelError(self.key, self.found, ())
        error.args = (f"{self} Also wrong: {some_of(keys)}.",)
        return error


class CheckpointError(PlayheadError):
    """Files and model description disagree, or a file is damaged. Nothing has been loaded."""

    def __init__(self, where: str, found: str, wanted: str, fix: str) -> None:
        super().__init__(f"{where}: {found}; wanted {wanted}. {fix}")
        self.where, self.found, self.wanted, self.fix = where, found, wanted, fix


class ChatTemplateError(PlayheadError):
    """A chat template refused its messages, or was refused itself."""


def some_of(names: Sequence[str]) -> str:
    """The first few names and how many more: a wrong checkpoint can have thousands."""
    shown = ", ".join(names[:MAX_LISTED])
    return shown if len(names) <= MAX_LISTED else f"{shown} and {len(names) - MAX_LISTED} more"
