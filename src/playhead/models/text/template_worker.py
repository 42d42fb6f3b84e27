"""The parent's side of the process that renders chat templates.

The process is started when it is first wanted and stays: starting takes 0.1 s, a job a fraction of a millisecond. After
a job that took too much it is ended, and the next job starts another. It ends with the worker or with the program.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import weakref
from dataclasses import dataclass
from typing import Any

from playhead.errors import ChatTemplateError
from playhead.models.text.template_frames import LENGTH

CHILD = "playhead.models.text.template_child"
"""By name: it imports Jinja, which takes a tenth of a second and is of no use here."""
FIX = "Check the messages' roles, order and contents, or use another template."
END_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateLimits:
    """What one rendering may take. `wall_s` is for a process that was stopped; CPU time decides all else."""

    cpu_s: float = 2.0
    memory_bytes: int = 512 << 20
    wall_s: float = 120.0


class TemplateWorker:
    """Sends jobs to the process, one at a time; any thread may ask. A forked child of this program gets its own."""

    def __init__(self, limits: TemplateLimits | None = None) -> None:
        self._limits = limits or TemplateLimits()
        self._owner, self._lock = os.getpid(), threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Any = None

    @property
    def pid(self) -> int | None:
        """The process's id, None while there is none."""
        return None if self._process is None else self._process.pid

    def ask(self, job: bytes) -> str:
        """The text of a job, or `ChatTemplateError` with what went wrong."""
        if self._owner != os.getpid():
            # A fork: process, pipes and perhaps a held lock belong to the parent.
            self._owner, self._lock, self._process = os.getpid(), threading.Lock(), None
        with self._lock:
            if self._process is not None and self._process.poll() is not None:
                self._stop(is_killed=False)  # something else ended it, between two jobs: that is no job's fault
            process = self._process or self._start()
            try:
                answer = self._exchange(process, job)
            except BaseException:
                # Half a frame may be under way: it is not known which job the next answer would belong to.
                self._stop(is_killed=True)
                raise
        if "error" in answer:
            raise ChatTemplateError(f"chat template: {answer['error'].rstrip('.')}. {FIX}")
        return str(answer["text"])

    def close(self) -> None:
        """End the process, if there is one."""
        with self._lock:
            if self._owner == os.getpid():
                self._stop(is_killed=False)

    def _start(self) -> subprocess.Popen[bytes]:
        limits = self._limits
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; from {CHILD} import main; "
            f"main({limits.cpu_s!r}, {limits.memory_bytes!r})"
        )
        # -P, -s, -S: nothing but this program's own path; -B: nothing is written.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-s", "-S", "-B", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._end = weakref.finalize(self, end_process, self._process, os.getpid())
        return self._process

    def _stop(self, *, is_killed: bool) -> None:
        if self._process is not None:
            if is_killed:
                self._process.kill()
            self._end()
            self._process = None

    def _exchange(self, process: subprocess.Popen[bytes], job: bytes) -> dict[str, Any]:
        assert process.stdin is not None, "it was started with pipes"
        try:
            process.stdin.write(LENGTH.pack(len(job)) + job)
            process.stdin.flush()
            (length,) = LENGTH.unpack(self._read(process, LENGTH.size))
            answer: dict[str, Any] = json.loads(self._read(process, length))
            return answer
        except (EOFError, BrokenPipeError):
            raise ChatTemplateError(f"chat template: {self._how_it_ended(process)}. {FIX}") from None

    def _read(self, process: subprocess.Popen[bytes], num_bytes: int) -> bytes:
        assert process.stdout is not None, "it was started with pipes"
        poll, parts = select.poll(), []
        poll.register(process.stdout, select.POLLIN)
        while num_bytes:
            if not poll.poll(self._limits.wall_s * 1000):
                raise ChatTemplateError(f"chat template: no answer in {self._limits.wall_s:g} s. {FIX}")
            part = os.read(process.stdout.fileno(), num_bytes)
            if not part:
                raise EOFError
            parts.append(part)
            num_bytes -= len(part)
        return b"".join(parts)

    def _how_it_ended(self, process: subprocess.Popen[bytes]) -> str:
        code, limits = process.wait(), self._limits
        return (
            f"its process ended with {code}; wanted at most {limits.cpu_s:g} s of CPU time and "
            f"{limits.memory_bytes >> 20} MiB"
        )


def end_process(process: subprocess.Popen[bytes], owner: int) -> None:
    """Let the process go: its input ends, and so does it. In a fork of the owner nothing is done."""
    if os.getpid() != owner:
        return
    try:
        process.communicate(timeout=END_S)
    except (subprocess.TimeoutExpired, BrokenPipeError, ValueError):
        process.kill()
        process.wait()
