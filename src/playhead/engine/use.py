"""Who may use an engine: one thread at a time, of the process that made it, and not from within its own step."""

from __future__ import annotations

import os
import threading

from playhead.errors import MisuseError


class EngineUse:
    """Which thread uses an engine, and whether it still may be used.

    `served_by` is the thread of an `AsyncEngine`: the only one that may use the engine, busy or idle.
    """

    def __init__(self) -> None:
        self.served_by: threading.Thread | None = None
        self.is_closed = False
        # A lock and no context manager of our own: an interrupt between taking and holding it cannot leave it taken.
        self.inside = threading.Lock()
        self._user: threading.Thread | None = None
        self._pid = os.getpid()

    @property
    def is_in_child(self) -> bool:
        """Whether this process is a fork of the one that made the engine."""
        return os.getpid() != self._pid

    def move_here(self) -> bool:
        """This thread uses the engine from now on; gives whether another one did before."""
        thread = threading.current_thread()
        if thread is self._user:
            return False
        self._user = thread
        return True

    def check_caller(self) -> bool:
        """`MisuseError` if this thread may not use the engine, now or in its turn; gives whether it used it last.

        Refused are a forked child, a closed engine, an engine that serves an `AsyncEngine`, and a call from within the
        engine's own step.
        """
        thread = threading.current_thread()
        if os.getpid() != self._pid:
            raise MisuseError(
                f"engine: used in process {os.getpid()}, but made in process {self._pid}. A forked child cannot use "
                "its parent's engine: make one in the child, or start the child by 'spawn'."
            )
        if self.is_closed:
            raise used_after_close()
        if self.served_by is not None and thread is not self.served_by:
            raise MisuseError(
                "engine: at work for an AsyncEngine. Send requests there, or close the AsyncEngine first."
            )
        is_last = thread is self._user
        if is_last and self.inside.locked():
            raise MisuseError(
                "engine: called from within its own step, by a callback or a finalizer. Call it after the step has "
                "returned."
            )
        return is_last

    def check(self, *, has_work: bool) -> None:
        """`MisuseError` if this thread may not use the engine now.

        A thread whose requests run keeps the engine until they are done, or until another thread takes it over.
        """
        self.check_caller()
        thread, user = threading.current_thread(), self._user
        if thread is not user and user is not None and user.is_alive() and (has_work or self.inside.locked()):
            raise MisuseError(
                f"engine: thread {thread.name!r} called it while thread {user.name!r} uses it. Call LLM, which serves "
                "many threads, or playhead.AsyncEngine."
            )


def used_after_close() -> MisuseError:
    """The error for an engine that is closed."""
    return MisuseError("engine: used after close(). Make a new one, or close it later.")


def kept_here() -> MisuseError:
    """The error for an engine that is sent to another process, or copied."""
    return MisuseError(
        "engine: pickled or copied, to be used elsewhere. An engine stays where it was made: make another there, and "
        "send prompts, parameters and outputs."
    )
