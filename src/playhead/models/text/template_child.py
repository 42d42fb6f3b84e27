"""The process that renders chat templates, one job at a time, within limits of memory and CPU time.

    parent                                     this process
    length (4 bytes), job as JSON  ----------> render
    <---------- length (4 bytes), answer       {"text": ...} or {"error": ...}

It imports the standard library and Jinja, opens no file, and ends when its input does. A job that takes too much memory
gets a `MemoryError`; one that takes too much CPU time ends the process, and the parent starts another.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from datetime import datetime
from typing import IO, Any

from playhead.models.text.template_frames import LENGTH
from playhead.models.text.template_sandbox import compile_template, render

MAX_COMPILED = 8
MAX_ERROR_CHARS = 300


def main(cpu_s: float, memory_bytes: int) -> None:
    """Answer jobs from stdin on stdout until there are no more."""
    for number in (signal.SIGINT, signal.SIGTERM):  # they reach every process, and the parent may have jobs to finish
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # kills, inside a long C call too
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit = address_space_bytes() + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    compiled: dict[str, Any] = {}
    while (raw := read_frame(sys.stdin.buffer)) is not None:
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        answer = answer_to(raw, compiled)
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(LENGTH.pack(len(answer)) + answer)
        sys.stdout.buffer.flush()


def address_space_bytes() -> int:
    """What the process has now, which the limit must leave it."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def read_frame(stream: IO[bytes]) -> bytes | None:
    prefix = stream.read(LENGTH.size)
    return stream.read(LENGTH.unpack(prefix)[0]) if len(prefix) == LENGTH.size else None


def answer_to(raw: bytes, compiled: dict[str, Any]) -> bytes:
    """The job's text, or what went wrong. A foreign program can raise anything, and every kind is one answer."""
    try:
        job = json.loads(raw)
        source = job["source"]
        if source not in compiled:
            if len(compiled) >= MAX_COMPILED:
                compiled.clear()
            compiled[source] = compile_template(source)
        if "variables" not in job:
            return json.dumps({"text": ""}).encode()
        now = datetime.fromisoformat(job["now"])
        return json.dumps({"text": render(compiled[source], job["variables"], now)}).encode()
    except BaseException as error:  # noqa: BLE001  the boundary of the process
        said = f"{type(error).__name__}: {str(error)[:MAX_ERROR_CHARS]}"
    return json.dumps({"error": said}).encode()
