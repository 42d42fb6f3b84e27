"""What every backend gives: record some work once, do it again later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from playhead.graph.oplog import OpLog
from playhead.graph.outputs import Outputs


class Recording(Protocol):
    """Work that can be done again on the same memory. Python of the recorded callable does not run again."""

    @property
    def log(self) -> OpLog: ...

    @property
    def num_nodes(self) -> int: ...

    @property
    def num_bytes(self) -> int: ...

    def replay(self) -> None: ...


class OpenRecording(Protocol):
    """A recording under way: everything issued until `close` belongs to it."""

    def close(self) -> Recording: ...

    def abandon(self) -> None: ...


class Backend(Protocol):
    """Where recordings are made. One per device; recordings of one backend share its memory pool."""

    @property
    def name(self) -> str: ...

    def warm_up(self, work: Callable[[], Outputs]) -> None:
        """Run once outside any recording, so that first-call costs and choices are not recorded."""

    def open(self, after: Recording | None = None) -> OpenRecording:
        """Start recording now. `after` is the part before this one, when one callable makes several."""


def record(backend: Backend, work: Callable[[], Outputs], *, is_warm: bool = False) -> tuple[Recording, Outputs]:
    """Record `work` whole. It runs once before, unless work like it has run already."""
    if not is_warm:
        backend.warm_up(work)
    opened = backend.open()
    try:
        outputs = work()
    except BaseException:
        opened.abandon()
        raise
    return opened.close(), outputs
