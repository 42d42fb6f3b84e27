"""Objects that stay, left out of Python's garbage collections. No torch."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

_OWNERS: set[int] = set()
"""The `StillObjects` of this process that have left objects out: a process has one collector."""


class StillObjects:
    """Keeps the garbage collector away from an engine's objects: it would look through hundreds of thousands of them in
    the middle of a step, for 50 to 150 ms.

    All objects of the process are left out, not only the engine's, until the last owner lets go or is gone. Objects
    that other code had frozen before stay frozen.
    """

    def __init__(self) -> None:
        self._let_go: Callable[[], object] | None = None

    def leave_out(self) -> None:
        """Leave out all objects there are now. The first call collects garbage before; later ones take no time."""
        if self._let_go is None:
            gc.collect()
            if _OWNERS or not gc.get_freeze_count():
                _OWNERS.add(id(self))
                self._let_go = weakref.finalize(self, _leave, id(self))
            else:
                self._let_go = _stay
        gc.freeze()

    def let_go(self) -> None:
        """The collector may look at them again. A second call does nothing."""
        if self._let_go is not None:
            self._let_go()


def _leave(owner: int) -> None:
    _OWNERS.discard(owner)
    if not _OWNERS:
        gc.unfreeze()


def _stay() -> None:
    """Other code froze objects first, and may count on it."""
