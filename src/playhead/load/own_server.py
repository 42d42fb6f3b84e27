"""A server of our own for a load: started on a port of the system's choice, and ended with the load."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from playhead.env import environment_without_keys
from playhead.errors import ConfigError
from playhead.load.client import Target, fetch

URL = re.compile(rb"https?://[^\s/]+:\d+")
POLL_S = 0.1
END_S = 40.0  # a server that drains ends within its own time limit, which is shorter
TAIL_CHARS = 600


@contextmanager
def own_server(model: str, flags: Sequence[str]) -> Iterator[Target]:
    """A server that is ready. What it wrote is in the error if it ends before."""
    command = [sys.executable, "-m", "playhead", "serve", model, "--port", "0", *flags]
    with tempfile.TemporaryDirectory(prefix="playhead-load-") as folder:
        log = Path(folder) / "server.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment_without_keys(),
            )
        try:
            yield asyncio.run(ready(process, log))
        finally:
            end(process)


async def ready(process: subprocess.Popen[bytes], log: Path) -> Target:
    """Wait until the server says where it is and that it is ready."""
    target: Target | None = None
    while True:
        if process.poll() is not None:
            said = " ".join(log.read_text(encoding="utf-8", errors="replace").split())[-TAIL_CHARS:]
            raise ConfigError(f"the server ended with {process.returncode} before it was ready. It wrote: {said}")
        found = URL.search(log.read_bytes()) if target is None else None
        if found is not None:
            target = Target.of(found.group().decode())
        if target is not None and (await fetch(target, "/ready")).status == 200:
            return target
        await asyncio.sleep(POLL_S)


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask it to end, and make it if it does not."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()
