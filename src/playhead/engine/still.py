"""Objects that stay, left out of Python's garbage collections. No torch."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

_OWNERS: set[int] = set()
"""Who has left objects out, in this process: the collector is the process's."""


class StillObjects:
    """What an engine keeps: hundreds of thousands of objects, which the collector would look through in the middle of
    a step, for 50 to 150 ms.

    Everything there is is left out, not the engine's alone, until the last owner lets go or is gone. Objects that
    somebody else had frozen before stay frozen.
    """

    def __init__(self) -> None:
        self._let_go: Callable[[], object] | None = None

    def leave_out(self) -> None:
        """All objects there are. The first call collects what is garbage among them; later ones take no time."""
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
    """Somebody else froze objects first, and may count on it."""
