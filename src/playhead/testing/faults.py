"""Faults on purpose: an exception raised inside a chosen function, at any line of it or of what it calls.

`injected` counts the lines that run in Playhead's own files while the function is on the stack, and raises before the
`at`-th of them, or as a function returns. So a fault comes at any depth, and in the middle of any change.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

import playhead
from playhead.engine.engine import Engine
from playhead.engine.response import ResponseBuilder
from playhead.engine.structured import MaskWriter
from playhead.graph.runner import GraphRunner
from playhead.kv.cache import HybridKVCache
from playhead.schedule.scheduler import Scheduler
from playhead.step.masks import Tail
from playhead.step.worker import Worker

ROOT = str(Path(str(playhead.__file__)).parent)
TESTING = str(Path(__file__).parent)

ERRORS: tuple[type[BaseException], ...] = (RuntimeError, MemoryError, KeyboardInterrupt, torch.OutOfMemoryError)

SITES: dict[str, tuple[Callable[..., Any], ...]] = {
    "plan": (Scheduler.plan,),
    "admit": (HybridKVCache.admit,),
    "extend": (HybridKVCache.extend, HybridKVCache.reserve),
    "launch": (Worker.launch,),
    "capture": (GraphRunner.capture_bucket,),
    "commit": (HybridKVCache.commit, Engine._commit),
    "collect": (Worker.collect,),
    "read": (Engine._read,),
    "detokenise": (ResponseBuilder.take, ResponseBuilder.complete_text, ResponseBuilder.output),
    "finish": (Scheduler.finish, HybridKVCache.finish, HybridKVCache.abort),
    "retire": (HybridKVCache.retire,),
    "masks": (MaskWriter.write, Scheduler.force, Tail.launch),
}
"""Where a fault can come: the functions of each part of a step. Only requests with forms have masks."""
PLAIN_SITES = tuple(site for site in SITES if site != "masks")


@dataclass(slots=True, kw_only=True)  # mutable: filled in as the functions run
class Injection:
    """One armed fault: how many places were passed, and where it was raised, if it was."""

    error: type[BaseException]
    at: int
    num_passed: int = 0
    raised_at: str | None = None


class Tracer:
    """A trace function that raises once, at a place counted inside the chosen functions."""

    def __init__(self, injection: Injection, codes: frozenset[CodeType]) -> None:
        self._injection, self._codes = injection, codes
        self._root: FrameType | None = None

    def on_call(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:
        if self._injection.raised_at is not None:
            return None
        code = frame.f_code
        if self._root is None:
            if code not in self._codes:
                return None
            self._root = frame
        is_ours = code.co_filename.startswith(ROOT) and not code.co_filename.startswith(TESTING)
        return self.on_line if is_ours else None

    def on_line(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:
        if event not in ("line", "return"):
            return self.on_line
        if event == "return" and frame is self._root:
            self._root = None
        if event == "return" and frame.f_code.co_flags & inspect.CO_GENERATOR:
            return self.on_line  # one that is thrown away returns in its destructor, where nobody can catch anything
        injection = self._injection
        injection.num_passed += 1
        if injection.num_passed == injection.at + 1 and injection.raised_at is None:
            injection.raised_at = f"{frame.f_code.co_qualname}, line {frame.f_lineno}, {event}"
            self._root = None
            raise injection.error(f"injected at {injection.raised_at}")
        return self.on_line


@contextmanager
def injected(site: str, error: type[BaseException], at: int, *, in_threads: bool = False) -> Iterator[Injection]:
    """Raise `error` at the `at`-th place inside a site's functions, once; `in_threads`: in threads started here."""
    injection = Injection(error=error, at=at)
    tracer = Tracer(injection, frozenset(function.__code__ for function in SITES[site]))
    before = threading.gettrace() if in_threads else sys.gettrace()
    install: Callable[[Any], None] = threading.settrace if in_threads else sys.settrace
    install(tracer.on_call)
    try:
        yield injection
    finally:
        install(before)
