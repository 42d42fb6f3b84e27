"""Clients that leave at any moment leave nothing behind, and change nobody else's tokens.

A slice runs in the suite. `PLAYHEAD_SERVE=full` has 10,000 requests, half of which leave.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from dataclasses import dataclass, replace

import pytest

from playhead.engine.snapshot import EngineSnapshot
from playhead.load.client import Load, SendOptions, Target
from playhead.load.exchange import Exchange, Outcome, PlannedRequest
from tests.serve.running import Running

NUM_REQUESTS = 10_000 if os.environ.get("PLAYHEAD_SERVE") == "full" else 120
MAX_NEW = 12
AT_A_TIME = 12
MANY_NEW = 200
WORDS = (
    "The",
    "whale",
    "and",
    "the",
    "sea",
    "were",
    "old",
    "when",
    "my",
    "lord",
    "came",
    "to",
    "England",
    "to",
    "speak",
)


def plan(rng: random.Random, number: int) -> PlannedRequest:
    """A request that every server answers alike: greedy, or drawn by its own seed."""
    length = rng.randint(1, 30)
    body = {
        "model": "embedded",
        "prompt": " ".join(rng.choice(WORDS) for _ in range(length)),
        "max_tokens": rng.randint(1, MAX_NEW),
        "temperature": rng.choice([0.0, 0.9]),
        "seed": number,
        "stream": True,
    }
    return PlannedRequest(at_s=0.0, body=json.dumps(body).encode(), input_len=length, output_len=body["max_tokens"])


def leaving(rng: random.Random, request: PlannedRequest) -> PlannedRequest:
    """A like request, for many more tokens, from a client that leaves: at once, soon, or in the middle of them."""
    body = json.loads(request.body) | {"max_tokens": MANY_NEW, "ignore_eos": True}
    request, when = replace(request, body=json.dumps(body).encode()), rng.randrange(3)
    if when == 0:
        return replace(request, leave_after_s=0.0)
    if when == 1:  # some of these wait for an answer in one piece
        body |= {"stream": rng.random() < 0.5}
        return replace(request, body=json.dumps(body).encode(), leave_after_s=rng.expovariate(1 / 0.05))
    return replace(request, leave_after_events=rng.randint(1, MAX_NEW))


def send(server: Running, plans: dict[int, PlannedRequest]) -> dict[int, Exchange]:
    """What became of each. A request that found the queue full is sent again: those that left may still be in it."""
    ended: dict[int, Exchange] = {}
    while len(ended) < len(plans):
        exchanges = {n: Exchange(plan, keeps_text=True) for n, plan in plans.items() if n not in ended}
        options = SendOptions(max_concurrency=AT_A_TIME)
        asyncio.run(Load(Target.of(server.url), list(exchanges.values()), options).run())
        ended |= {n: one for n, one in exchanges.items() if one.outcome is not Outcome.REFUSED}
    return ended


def texts(ended: dict[int, Exchange], numbers: list[int]) -> dict[int, str]:
    """The answers, all of which must be whole."""
    assert {(ended[n].outcome, ended[n].detail) for n in numbers} == {(Outcome.FINISHED, "")}
    return {n: ended[n].text for n in numbers}


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a server holds and has done."""

    held: dict[str, object]
    num_generated: int


def look_at(server: Running) -> Seen:
    """Everything that a request holds while it is there, when none is there any more."""
    server.wait_until_idle()

    async def look() -> tuple[EngineSnapshot, int]:
        snapshot = await server.backend.snapshot()
        return snapshot, len(asyncio.all_tasks())

    snapshot, num_tasks = server.on_loop(look())
    held = {
        "running": snapshot.num_running,
        "waiting": snapshot.num_waiting,
        "rows": len(snapshot.requests),
        "violations": snapshot.stats.num_violations,
        "open streams": sum(app.recorder.num_open_streams for app in server.apps),
        "held pages": sum(group.num_held for group in snapshot.groups),
        "quarantined pages": sum(group.num_quarantined for group in snapshot.groups),
        "pages in flight": sum(group.num_in_flight for group in snapshot.groups),
        "tasks": num_tasks,
        "descriptors": len(os.listdir("/proc/self/fd")),
    }
    return Seen(held=held, num_generated=snapshot.stats.num_generated_tokens)


@dataclass(frozen=True, kw_only=True)
class Storm:
    """The server before and after, what those who stayed got when nobody left, and what everybody got."""

    before: Seen
    after: Seen
    calm: dict[int, str]
    ended: dict[int, Exchange]


@pytest.fixture(scope="module")
def storm(server) -> Storm:
    rng = random.Random(20261116)
    plans = {n: plan(rng, n) for n in range(NUM_REQUESTS)}
    staying = sorted(rng.sample(range(NUM_REQUESTS), NUM_REQUESTS // 2))
    calm = texts(send(server, {n: plans[n] for n in staying}), staying)
    before = look_at(server)
    ended = send(server, {n: one if n in calm else leaving(rng, one) for n, one in plans.items()})
    return Storm(before=before, after=look_at(server), calm=calm, ended=ended)


def test_who_stays_gets_the_tokens_of_an_undisturbed_run(storm):
    assert texts(storm.ended, list(storm.calm)) == storm.calm
    assert len({text for text in storm.calm.values() if text}) > len(storm.calm) / 2


def test_many_left_in_the_middle(storm):
    left = [one for n, one in storm.ended.items() if n not in storm.calm]
    assert {one.outcome for one in left} <= {Outcome.LEFT, Outcome.FINISHED}
    assert sum(one.outcome is Outcome.LEFT for one in left) > len(left) / 2
    assert any(one.num_events for one in left)
    assert any(not one.status for one in left)


def test_who_leaves_leaves_nothing_behind(storm):
    assert storm.after.held == storm.before.held
    empty = [name for name in storm.after.held if name not in ("tasks", "descriptors")]
    assert {name: storm.after.held[name] for name in empty} == dict.fromkeys(empty, 0)


def test_nothing_is_generated_for_who_has_left(storm):
    """Most of the tokens that they asked for were never made."""
    read = sum(one.num_tokens for one in storm.ended.values())
    made = storm.after.num_generated - storm.before.num_generated
    num_left = sum(one.outcome is Outcome.LEFT for one in storm.ended.values())
    assert made - read < num_left * MANY_NEW / 2
