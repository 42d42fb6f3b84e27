"""What the transport knows of a route: method, path, who may call it, and a coroutine that answers. No torch."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from playhead.serve.call import Answer, Call, EventStream

SEGMENTS = r"(?:/[A-Za-z0-9_-][A-Za-z0-9._-]*)"
PLAIN_PATH = re.compile(rf"/|{SEGMENTS}+")
"""A path that can be written in one way only."""
TEMPLATE = re.compile(rf"(?P<prefix>{SEGMENTS}+/)\{{(?P<name>[a-z_]+)\}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One method of one path. Everyone may call it if it is public; all others need a key, if the server has any.

    `path` is plain, or it ends in a name in braces: /v1/models/{model} matches /v1/models/org/name too.
    An endpoint that `needs_engine` is refused while the engine starts, and while the server drains.
    """

    method: str
    path: str
    answer: Callable[[Call], Awaitable[Answer | EventStream]]
    is_public: bool = False
    needs_engine: bool = True

    def __post_init__(self) -> None:
        known = PLAIN_PATH.fullmatch(self.path) or TEMPLATE.fullmatch(self.path)
        assert known, f"{self.path!r} can be written in a second way"

    @property
    def prefix(self) -> str | None:
        """What stands before the name in braces; None if the path has none."""
        found = TEMPLATE.fullmatch(self.path)
        return found["prefix"] if found is not None else None

    @property
    def plain_path(self) -> str:
        """The path as a router without parameters has it."""
        return self.path.replace("{", "-").replace("}", "-")
