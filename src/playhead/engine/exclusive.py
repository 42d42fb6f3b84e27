"""An engine has one user at a time: one thread of the process that made it, and not from within its own step."""

from __future__ import annotations

import os
import threading

from playhead.errors import MisuseError


class Exclusive:
    """Who may use an engine now. The thread whose requests it runs owns it until they are done."""

    def __init__(self) -> None:
        self.is_closed = False
        self._pid = os.getpid()
        self._owner: threading.Thread | None = None
        self._inside = threading.Lock()

    def entered(self, *, has_work: bool) -> threading.Lock:
        """A lock to do one thing under, or `MisuseError`.

        A lock and no context manager of our own: an interrupt between taking and holding it cannot leave it taken.
        """
        self.check(has_work=has_work)
        self._owner = threading.current_thread()
        return self._inside

    def check(self, *, has_work: bool) -> None:
        """`MisuseError` if this thread may not use the engine now."""
        if os.getpid() != self._pid:
            raise MisuseError(
                f"LLM: used in process {os.getpid()}, but made in process {self._pid}. A forked child cannot use its "
                "parent's engine: make the LLM in the child, or start the child by 'spawn'."
            )
        if self.is_closed:
            raise MisuseError("LLM: used after close(). Make a new one, or close it later.")
        is_owner = self._owner is threading.current_thread()
        if self._inside.locked() and is_owner:
            raise MisuseError(
                "LLM: called from within its own step, by a callback or a finalizer. Call it after that has returned."
            )
        if not is_owner and self._owner is not None and self._owner.is_alive() and (has_work or self._inside.locked()):
            raise MisuseError(
                f"LLM: thread {threading.current_thread().name!r} used it while thread {self._owner.name!r} does. "
                "Use playhead.engine.async_engine.AsyncEngine for many callers, or one LLM per thread."
            )
