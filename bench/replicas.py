"""Replicas that are killed, added and taken away under load: `python -m bench.replicas [--on local|ray] [--kills 10]`.

With `--on netns` each replica has a network namespace of its own, and the network is lost instead of the process.

A server with two replicas of the embedded model on this machine, and clients that stream over HTTP. Every request is
asked once while nothing happens; what follows is compared with that, text for text. Prints a table; the exit code is 1
if a request was lost or differs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import uvloop

from playhead.engine.config import EngineConfig
from playhead.scale.build import launcher_for
from playhead.scale.fleet import FleetConfig
from playhead.scale.launch import Launcher
from playhead.scale.replicas import ReplicatedBackend
from playhead.serve import wire
from playhead.serve.assemble import make_application
from playhead.serve.auth import KeyRing
from playhead.serve.config import ServeConfig
from playhead.serve.limits import ServeLimits
from playhead.serve.run import Server, bind
from playhead.testing.namespaces import NamespaceLauncher

NUM_STREAMS = 32
NUM_REQUESTS = 64
NUM_TOKENS = 120
# Room for all streams in one replica: a pause is then the time to go on, and not the wait for a place.
ENGINE = EngineConfig(max_model_len=512, max_num_seqs=32, kv_memory_bytes=1 << 26, seed=3, device="cpu")
LIMITS = ServeLimits(max_queued_requests=256, queue_timeout=300)
WORDS = (
    "whale",
    "sea",
    "captain",
    "ship",
    "old",
    "man",
    "came",
    "upon",
    "a",
    "great",
    "white",
    "water",
    "of",
    "he",
    "it",
)

Body = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one stream gave."""

    text: str
    finish_reason: str | None
    num_tokens: int
    num_cached: int
    longest_pause_s: float
    error: str | None = None

    def same_as(self, other: Answer) -> bool:
        return (self.text, self.finish_reason, self.num_tokens) == (other.text, other.finish_reason, other.num_tokens)


@dataclass(slots=True, kw_only=True)  # mutable: counters of a run
class Tally:
    """What became of the requests of one run."""

    name: str
    num_done: int = 0
    num_lost: int = 0
    num_wrong: int = 0
    longest_pause_s: float = 0.0
    errors: list[str] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)

    def add(self, answer: Answer, wanted: Answer | None) -> None:
        self.num_done += 1
        self.longest_pause_s = max(self.longest_pause_s, answer.longest_pause_s)
        if answer.error is not None:
            self.num_lost += 1
            self.errors.append(answer.error)
        elif wanted is not None and not answer.same_as(wanted):
            self.num_wrong += 1

    @property
    def row(self) -> str:
        notes = "; ".join(f"{name} {value}" for name, value in self.notes.items())
        pause = f"{self.longest_pause_s:.2f}"
        return f"| {self.name} | {self.num_done} | {self.num_lost} | {self.num_wrong} | {pause} | {notes} |"


def body_of(i: int) -> Body:
    """Request `i`: greedy, drawn, filtered, with penalties, with a stop string, with a form."""
    rng = random.Random(i)
    prompt = " ".join(rng.choice(WORDS) for _ in range(rng.randint(4, 40)))
    plain: Body = {"model": "embedded", "prompt": prompt, "max_tokens": NUM_TOKENS, "seed": i, "ignore_eos": True}
    kinds: tuple[Body, ...] = (
        {"temperature": 0},
        {"temperature": 1.0},
        {"temperature": 0.9, "top_p": 0.9, "top_k": 40},
        {"temperature": 1.0, "frequency_penalty": 0.6, "repetition_penalty": 1.1},
        {"temperature": 1.0, "stop": ["zq"]},
        {"temperature": 1.0, "ignore_eos": False, "structured_outputs": {"regex": "[a-z ]{90}"}},
    )
    return {**plain, **kinds[i % len(kinds)]}


async def ask(port: int, body: Body) -> Answer:
    """Stream one completion."""
    payload = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    answer = Answer(text="", finish_reason=None, num_tokens=0, num_cached=0, longest_pause_s=0.0, error="no end")
    try:
        writer.write(head.encode() + payload)
        last_s: float | None = None
        while line := await reader.readline():
            if not line.startswith(b"data: "):
                continue
            now_s, data = time.perf_counter(), line.removeprefix(b"data: ").strip()
            if data == b"[DONE]":
                return replace(answer, error=None)
            answer = taken(answer, json.loads(data), 0.0 if last_s is None else now_s - last_s)
            last_s = now_s
        return answer
    finally:
        writer.close()


def taken(answer: Answer, event: Body, pause_s: float) -> Answer:
    """An answer with one more event."""
    if "error" in event:
        return replace(answer, error=str(event["error"].get("code")))
    for choice in event["choices"]:
        reason = choice["finish_reason"] or answer.finish_reason
        answer = replace(answer, text=answer.text + choice["text"], finish_reason=reason)
    if usage := event.get("usage"):
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        answer = replace(answer, num_tokens=usage["completion_tokens"], num_cached=cached)
    return replace(answer, longest_pause_s=max(answer.longest_pause_s, pause_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A server under test."""

    port: int
    backend: ReplicatedBackend

    async def reference(self) -> dict[int, Answer]:
        """Every request's answer while nothing happens."""
        places = asyncio.Semaphore(NUM_STREAMS)

        async def one(i: int) -> Answer:
            async with places:
                return await ask(self.port, body_of(i))

        return dict(enumerate(await asyncio.gather(*(one(i) for i in range(NUM_REQUESTS)))))

    async def serving(self, count: int) -> float:
        """Wait until so many replicas serve and none is on its way out; gives the seconds that took."""
        began_s, fleet = time.perf_counter(), self.backend.fleet
        while len(fleet.engines) != count or fleet.draining or fleet.num_starting:
            await asyncio.sleep(0.02)
        return time.perf_counter() - began_s


@asynccontextmanager
async def stage(on_ray: bool, fleet: FleetConfig, launcher: Launcher | None = None) -> AsyncIterator[Stage]:
    """A server with replicas, in this process."""
    config = ServeConfig(port=0, replicas=fleet.num_replicas, ray=on_ray)
    begin = wire.Begin("embedded", wire.config_fields(ENGINE), None)
    backend = ReplicatedBackend(launcher or launcher_for(config, ENGINE), begin, LIMITS, fleet)
    app = make_application(backend, KeyRing([]), config)
    sock = bind(config)
    server = Server(app)
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        await backend.start()
        yield Stage(port=sock.getsockname()[1], backend=backend)
    finally:
        server.handle_exit(signal.SIGTERM, None)
        await serving


async def under_load(
    where: Stage, wanted: dict[int, Answer], tally: Tally, happen: Callable[[], Awaitable[None]]
) -> None:
    """Keep `NUM_STREAMS` streams going while something happens, and compare each with what it should be."""
    is_over = False

    async def client(first: int) -> None:
        i = first
        while not is_over:
            tally.add(await ask(where.port, body_of(i)), wanted[i])
            i = (i + NUM_STREAMS + 1) % NUM_REQUESTS

    clients = [asyncio.create_task(client(i)) for i in range(NUM_STREAMS)]
    await happen()
    is_over = True
    await asyncio.gather(*clients)


def kill_9(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


async def losses(
    where: Stage, wanted: dict[int, Answer], count: int, lose: Callable[[int], None], *, what: str = "kill -9"
) -> Tally:
    """Lose the busiest replica, again as soon as the last one is replaced and its sequences have gone on."""
    tally, rng, replaced_s = Tally(name=f"{count} x {what}"), random.Random(1), list[float]()

    async def kill() -> None:
        for _ in range(count):
            await where.serving(2)
            await asyncio.sleep(rng.uniform(0.2, 0.8))
            victim = max(where.backend.fleet.engines.values(), key=lambda engine: len(engine.samples))
            had = {sample: len(sample.tokens) for sample in victim.samples.values()}
            lose(victim.pid)
            while victim.name in where.backend.fleet.engines:
                await asyncio.sleep(0.005)
            replaced_s.append(await where.serving(2))
            while any(len(one.tokens) == num and not one.stream.is_over for one, num in had.items()):
                await asyncio.sleep(0.02)

    before, num_lost = where.backend.num_moved, where.backend.fleet.counts.num_lost
    await under_load(where, wanted, tally, kill)
    tally.notes = {
        "replicas lost": str(where.backend.fleet.counts.num_lost - num_lost),
        "sequences moved": str(where.backend.num_moved - before),
        "replaced after": f"{min(replaced_s):.1f} to {max(replaced_s):.1f} s",
    }
    return tally


async def up_and_down(where: Stage, wanted: dict[int, Answer]) -> Tally:
    """From two replicas to three, to one, and back to two."""
    tally, moved = Tally(name="2 -> 3 -> 1 -> 2 replicas"), where.backend.num_moved

    async def scale() -> None:
        for count in (3, 1, 2):
            where.backend.fleet.scale_to(count)
            tally.notes[f"to {count}"] = f"{await where.serving(count):.1f} s"

    await under_load(where, wanted, tally, scale)
    tally.notes["sequences moved"] = str(where.backend.num_moved - moved)
    return tally


async def prefixes(where: Stage, *, num_prefixes: int = 24, num_turns: int = 12) -> Tally:
    """Prompts that share their first 128 tokens with others, eight at a time: how many find them cached."""
    tally, rng = Tally(name="shared prefixes"), random.Random(2)
    begins = [[rng.randrange(3, 4000) for _ in range(128)] for _ in range(num_prefixes)]
    turns = [i for i in range(num_prefixes) for _ in range(num_turns)]
    rng.shuffle(turns)
    places, seen, found = asyncio.Semaphore(8), set[int](), list[bool]()

    async def one(i: int, last: int) -> None:
        async with places:
            is_first = i not in seen
            seen.add(i)
            body = {"model": "embedded", "prompt": [*begins[i], last], "max_tokens": 4, "temperature": 0}
            answer = await ask(where.port, body)
            tally.add(answer, None)
            if not is_first:
                found.append(answer.num_cached >= 96)

    await asyncio.gather(*(one(i, 3 + n) for n, i in enumerate(turns)))
    tally.notes = {"found cached": f"{100 * sum(found) / len(found):.1f}% of {len(found)}"}
    tally.notes["by reason"] = str({str(why): n for why, n in where.backend.router.num_chosen.items()})
    return tally


async def campaign(on_ray: bool, num_kills: int) -> list[Tally]:
    """Everything, on one server."""
    began_s = time.perf_counter()
    async with stage(on_ray, FleetConfig(num_replicas=2, max_retries=6)) as where:
        ready = Tally(name="start", notes={"2 replicas after": f"{time.perf_counter() - began_s:.1f} s"})
        found = [ready, await prefixes(where)]
        wanted = await where.reference()
        quiet = Tally(name="undisturbed")
        for answer in wanted.values():
            quiet.add(answer, answer)
        killed = await losses(where, wanted, num_kills, kill_9)
        return [*found, quiet, killed, await up_and_down(where, wanted)]


async def lost_networks(count: int) -> list[Tally]:
    """Cut the link of the busiest replica so many times."""
    launcher = NamespaceLauncher(ENGINE)
    async with stage(False, FleetConfig(num_replicas=2, max_retries=6), launcher) as where:
        wanted = await where.reference()
        quiet = Tally(name="undisturbed")
        for answer in wanted.values():
            quiet.add(answer, answer)
        lost = await losses(where, wanted, count, launcher.cut, what="a network lost")
    lost.notes["did not end by themselves"] = str(launcher.num_killed)
    return [quiet, lost]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--on", choices=("local", "ray", "netns"), default="local")
    parser.add_argument("--kills", type=int, default=10)
    args = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        tallies = runner.run(
            lost_networks(args.kills) if args.on == "netns" else campaign(args.on == "ray", args.kills)
        )
    print("| run | streams | lost | wrong | longest pause, s | |\n|---|---|---|---|---|---|")
    for tally in tallies:
        print(tally.row)
        for error in sorted(set(tally.errors)):
            print(f"lost: {error}", file=sys.stderr)
    return 1 if any(tally.num_lost or tally.num_wrong for tally in tallies) else 0


if __name__ == "__main__":
    sys.exit(main())
