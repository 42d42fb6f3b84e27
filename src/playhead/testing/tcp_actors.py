"""Engines that are reached by TCP as an actor of Ray is, without Ray: `python -m playhead.testing.tcp_actors HOST`.

The process reads a secret from its input, writes its port, and serves whoever knows the secret.
"""

from __future__ import annotations

import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from playhead.env import for_engine_process
from playhead.errors import EngineStopped
from playhead.scale.actor import SECRET_BYTES, EngineActor, reached

MODULE = "playhead.testing.tcp_actors"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StartedActor:
    """A process that listens."""

    process: subprocess.Popen[bytes]
    port: int
    secret: bytes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TcpHost:
    """Such a process and the socket to it."""

    connection: socket.socket
    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self.process.pid

    def end(self) -> None:
        """Kill it, as Ray kills an actor."""
        self.process.kill()
        self.process.wait()


def start_actor(host: str, *, before: Sequence[str] = ()) -> StartedActor:
    """A process that listens on this address. `before` are words before its command, such as `ip netns exec NAME`."""
    secret = secrets.token_bytes(SECRET_BYTES)
    process = subprocess.Popen(
        [*before, sys.executable, "-P", "-m", MODULE, host],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=for_engine_process(sys.path),
    )
    assert process.stdin is not None, "it is a pipe"
    assert process.stdout is not None, "it is a pipe"
    with process.stdin, process.stdout:
        process.stdin.write(secret.hex().encode() + b"\n")
        process.stdin.flush()
        said = process.stdout.readline()
    if not said:
        process.wait()
        raise EngineStopped(f"actor: its process ended before it listened on {host}")
    return StartedActor(process=process, port=int(said), secret=secret)


def reach(actor: StartedActor, host: str, port: int) -> TcpHost:
    """Connect to an actor, by its own address or by a proxy's."""
    try:
        connection = reached(host, port, actor.secret)
    except BaseException:
        actor.process.kill()
        actor.process.wait()
        raise
    return TcpHost(connection=connection, process=actor.process)


def main(host: str) -> None:
    """Listen, and say where. The engine is served by a thread, which ends the process.

    This thread must not end: Python would then refuse work for pools of threads.
    """
    secret = bytes.fromhex(sys.stdin.readline())
    port, _ = EngineActor().listen(host, secret)
    print(port, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1])
