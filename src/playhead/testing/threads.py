"""Threads that meet where a test wants them: in the middle of a step, or in the line for the next turn."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from playhead.engine.turns import Turns
from playhead.llm import LLM
from playhead.schedule.request import Chunk
from playhead.step.worker import InFlight
from playhead.testing.mutant import swapped

HANGS_S = 300.0  # no verdict depends on it: a thread that does not come back is given up


class Beside(threading.Thread):
    """Work in a thread of its own: what it gave, or what it raised."""

    def __init__(self, work: Callable[[], Any], name: str = "beside") -> None:
        super().__init__(name=name, daemon=True)
        self._work, self._given, self.raised = work, None, None

    _given: Any
    raised: BaseException | None

    def run(self) -> None:
        try:
            self._given = self._work()
        except BaseException as error:  # noqa: BLE001  `result` raises it again
            self.raised = error

    def result(self) -> Any:
        """What the work gave, once it is done."""
        self.join(HANGS_S)
        if self.is_alive():
            raise TimeoutError(f"thread {self.name!r} waits for ever")
        if self.raised is not None:
            raise self.raised
        return self._given


def in_line(thread: Beside, turns: Turns) -> Beside:
    """Start a thread; gives it back when it waits for its turn, or has ended without."""
    last = turns._last
    thread.start()
    while thread.is_alive() and turns._last is last:
        time.sleep(0)
    return thread


@contextmanager
def in_a_step(llm: LLM, work: Callable[[], object]) -> Iterator[None]:
    """Do the work once, in the middle of the first step that is launched."""
    launch, is_done = llm.engine.worker.launch, threading.Event()

    def launch_beside(chunks: Sequence[Chunk]) -> InFlight:
        if not is_done.is_set():
            is_done.set()
            work()
        return launch(chunks)

    with swapped(llm.engine.worker, "launch", launch_beside):
        yield
