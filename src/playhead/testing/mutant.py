"""A bug we know, as a patch; and a check that must notice it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A bug class with the place it was seen. `apply` puts it into the running code and takes it out again."""

    name: str
    source: str
    apply: Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checker:
    """Looks for violations. It fires by returning some, or by an error our own checks raise."""

    name: str
    run: Callable[[], list[str]]
