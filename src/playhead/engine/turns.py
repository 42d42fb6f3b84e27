"""Turns: threads that use one thing after another, in the order in which they came."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from playhead.errors import MisuseError

T = TypeVar("T")


class Place(threading.local):
    """The current thread's own lock, taken while the thread waits for its turn or has it."""

    def __init__(self) -> None:
        self.here = threading.Lock()


class Turns:
    """One thread at a time, first come, first served.

    `_turn` keeps threads apart. Every thread holds a lock until its turn is over and waits for the lock of the thread
    before it, so a thread that comes back at once stands behind those that wait. Only `with` takes a lock here: an
    interrupt cannot come between taking a lock and knowing that it must be given back. A thread that is interrupted
    while it waits lets the one behind it go ahead, which then waits for `_turn`.
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._last = threading.Lock()
        self._place = Place()

    @property
    def is_taken(self) -> bool:
        """Whether some thread has its turn."""
        return self._turn.locked()

    @property
    def is_here(self) -> bool:
        """Whether this thread waits for its turn, or has it."""
        return self._place.here.locked()

    def take(self, work: Callable[[], T]) -> T:
        """Do the work when it is this thread's turn. Refused where it would wait for itself."""
        if self.is_here:
            raise MisuseError(
                "engine: called from within its own step, by a callback or a finalizer. Call it after the step has "
                "returned."
            )

        mine = threading.Lock()
        with self._place.here, mine:
            before, self._last = self._last, mine
            with before, self._turn:
                return work()
