"""A bug we know, as a patch; and a check that must notice it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch


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


@contextmanager
def swapped(owner: object, name: str, replacement: Any) -> Iterator[None]:
    """One attribute replaced for a while: most mutants are one of these."""
    with patch.object(owner, name, replacement):
        yield
