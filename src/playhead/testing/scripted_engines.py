"""Engines of a fleet that do what a test says, at the other ends of real sockets. No process is started.

    launcher = ScriptedLauncher()
    backend = scripted_fleet(launcher, FleetConfig(num_replicas=2))
    await backend.start()                          both engines answer `Begin` by themselves
    launcher.engines[0].give(number, [7, 8])       two tokens for a sequence that it was given
    launcher.engines[0].die()                      its socket ends

What an engine hears is read by the event loop that the backend runs on: `quiet` lets it read.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict

from playhead.engine.config import EngineConfig
from playhead.engine.snapshot import EngineSnapshot, GroupUse
from playhead.engine.timeline import EngineStats
from playhead.errors import EngineStopped
from playhead.outputs import FinishReason
from playhead.scale.fleet import FleetConfig
from playhead.scale.launch import Launched
from playhead.scale.replicas import ReplicatedBackend
from playhead.serve import wire
from playhead.serve.limits import Clock, ServeLimits
from playhead.testing.scripted_backend import ScriptedBackend

PAGE = 4
GROUP = GroupUse(
    name="full",
    window=None,
    page_size=PAGE,
    bytes_per_page=1,
    num_pages=1,
    num_free=1,
    num_available=1,
    num_held=0,
    num_cached=0,
    num_in_flight=0,
    num_quarantined=0,
)
SNAPSHOT = EngineSnapshot(stats=EngineStats(), num_running=0, num_waiting=0, max_running=4, groups=(GROUP,))


def ready() -> wire.Ready:
    """What a scripted engine says when it is told to begin."""
    facts = asdict(ScriptedBackend().facts)
    for name in ("default_params", "has_chat_template"):
        del facts[name]
    return wire.Ready(facts=facts, default_params={}, tokenizer_path="", snapshot=SNAPSHOT)


class ScriptedEngine:
    """An `EngineHost` and what is behind it. `running` are the sequences that it was given, by number."""

    def __init__(self, pid: int) -> None:
        self.connection, self._socket = socket.socketpair()
        self._socket.setblocking(False)
        self.pid = pid
        self.running: dict[int, wire.Submit] = {}
        self.is_over = False
        self._num_steps = 0
        self._frames = wire.Frames()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket, self._on_bytes)

    def give(self, number: int, tokens: Sequence[int], end: FinishReason | None = None) -> None:
        """A step that gave these tokens of one sequence."""
        self._num_steps += 1
        row = {"numbers": [number], "counts": [len(tokens)], "ends": [wire.ENDS.index(end)], "cached": [0]}
        self.send(wire.framed_step(wire.StepTokens(num_steps=self._num_steps, tokens=tokens, **row)))
        if end is not None:
            del self.running[number]

    def send(self, frames: bytes) -> None:
        """Say something. A front that has closed its end hears nothing."""
        with suppress(BrokenPipeError):
            self._socket.sendall(frames)

    def die(self) -> None:
        """The process ends, with everything that it was doing."""
        if not self.is_over:
            self.is_over = True
            self._loop.remove_reader(self._socket)
            self._socket.close()

    def end(self) -> None:
        """In a thread: the front has closed its end, and the event loop has seen to the rest or will."""

    def _on_bytes(self) -> None:
        data = b""
        with suppress(ConnectionError):  # the front has closed its end
            data = self._socket.recv(1 << 20)
        if not data:
            self.die()
            return
        for _, payload in self._frames.feed(data):
            self._follow(wire.read_order(payload))

    def _follow(self, order: wire.Order) -> None:
        if isinstance(order, wire.Begin):
            self.send(wire.framed(ready()))
        elif isinstance(order, wire.Submit):
            self.running[order.number] = order
        elif isinstance(order, wire.Abort):
            for number in order.numbers:
                self.running.pop(number, None)
        elif isinstance(order, wire.Here):
            self.send(wire.framed(wire.Beat(self._num_steps, False, order.number)))
        else:
            self.send(wire.framed(wire.Shown(SNAPSHOT)))


class ScriptedLauncher:
    """Starts scripted engines, in turn. While `is_broken`, none can be started."""

    def __init__(self) -> None:
        self.engines: list[ScriptedEngine] = []
        self.is_broken = False
        self.num_asked = 0

    async def launch(self) -> Launched:
        self.num_asked += 1
        if self.is_broken:
            raise EngineStopped("launcher: there is no place")
        self.engines.append(ScriptedEngine(len(self.engines)))
        return Launched(host=self.engines[-1], config=EngineConfig())

    async def close(self) -> None:
        """The engines end with their sockets."""


def scripted_fleet(
    launcher: ScriptedLauncher, config: FleetConfig, clock: Clock, limits: ServeLimits | None = None
) -> ReplicatedBackend:
    """A backend over scripted engines: the embedded model's tokenizer, and no model."""
    begin = wire.Begin("embedded", {}, None)
    return ReplicatedBackend(launcher, begin, limits or ServeLimits(), config, clock)


async def quiet(turns: int = 20) -> None:
    """Let sockets and tasks of this event loop do what they have to."""
    for _ in range(turns):
        await asyncio.sleep(0)
