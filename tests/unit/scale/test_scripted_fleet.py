"""A backend over engines that do what a test says: what it counts, and what becomes of its requests."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import replace

import pytest

from playhead.engine.front import RequestOptions
from playhead.errors import EnginesLost, QueueFull, RequestTimedOut
from playhead.outputs import FinishReason
from playhead.sampling_params import SamplingParams
from playhead.scale import fleet as fleets
from playhead.scale.fleet import FleetConfig
from playhead.serve import wire
from playhead.serve.backend import BackendState
from playhead.testing.scripted_engines import ScriptedLauncher, quiet, scripted_fleet

PARAMS = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True, detokenize=False)
NUM_EVENTS = 400


class HandClock:
    """A clock that stands until it is set."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Scripted:
    """A backend, its scripted engines, and the streams that a test has opened."""

    def __init__(self, **config):
        self.clock, self.launcher = HandClock(), ScriptedLauncher()
        self.backend = scripted_fleet(self.launcher, FleetConfig(**config), self.clock)
        self.num_opened = 0

    async def __aenter__(self):
        await self.backend.start()
        self.backend._timer.cancel()  # a test says when time goes by
        return self

    async def __aexit__(self, *error):
        await self.backend.close()
        await quiet()

    def submit(self, prompt=(5, 6, 7), **fields):
        self.num_opened += 1
        checked = self.backend.reader.check(list(prompt), replace(PARAMS, **fields))
        return self.backend.submit(f"r{self.num_opened}", checked, RequestOptions())

    async def serving(self, count):
        while len(self.backend.fleet.engines) != count:
            await asyncio.sleep(0)

    @property
    def alive(self):
        """Scripted engines whose sockets are open."""
        return [one for one in self.launcher.engines if not one.is_over]

    async def later(self, seconds):
        self.clock.now += seconds
        self.backend.check()
        await quiet()


def token_of(number, place):
    """What every engine gives at this place of a sequence, so that a token too much or too few shows."""
    return (7 * number + place) % 1000


def give_next(engine, number, end=None):
    order = engine.running[number]
    place = len(wire.words_of(order.output))
    engine.running[number] = wire.msgspec.structs.replace(order, output=order.output + b"\0\0\0\0")
    engine.give(number, [token_of(number, place)], end)


def check_counts(fleet):
    """What the backend counts is what its engines have, and nobody else has anything."""
    backend = fleet.backend
    engines = {**backend.fleet.engines, **backend.fleet.draining}
    there = {number: engine for engine in engines.values() for number in engine.samples}
    assert there == backend._engine_of
    assert {name: backend._loads[name] for name in engines} == {one.name: len(one.samples) for one in engines.values()}
    assert backend._loads.total == len(there)
    assert len(backend._loads) == len(engines)
    assert set(backend.fleet.engines) == backend.router._replicas
    running = {number for one in fleet.alive for number in one.running}
    assert running == set(there)
    waiting = set(backend._homeless)
    assert not waiting & running
    assert waiting | running == {
        sample.number for stream in backend._streams.values() for sample in stream.samples if not sample.is_over
    }
    assert set(backend._losses) <= waiting | running


async def happen(fleet, streams, dice):
    """One thing that can happen to a fleet at any moment."""
    event = dice.choice(["submit", "submit", "token", "token", "token", "end", "leave", "fail", "die", "scale", "time"])
    engines = [one for one in fleet.alive if one.running]
    if event == "submit":
        prompt = [dice.randrange(4) for _ in range(dice.choice([1, 9, 30]))]
        with suppress(QueueFull):
            streams.append(fleet.submit(prompt, n=dice.choice([1, 1, 3]), temperature=1.0))
    elif event in ("token", "end", "fail") and engines:
        engine = dice.choice(engines)
        number = dice.choice(sorted(engine.running))
        if event == "fail":
            del engine.running[number]
            engine.send(wire.framed(wire.Failed(number, wire.ErrorNote("StepFailed"))))
        else:
            give_next(engine, number, FinishReason.LENGTH if event == "end" else None)
    elif event == "leave" and streams:
        streams.pop(dice.randrange(len(streams))).close()
    elif event == "die" and fleet.alive:
        dice.choice(fleet.alive).die()
    elif event == "scale":
        fleet.backend.fleet.scale_to(dice.choice([1, 2, 2, 3]))
    elif event == "time":
        fleet.clock.now += dice.choice([0.5, 31, 61])
        fleet.backend.check()
    await quiet(dice.choice([1, 3, 20]))


@pytest.mark.parametrize("seed", range(6))
def test_counts_are_exact_whatever_happens_and_no_token_is_lost_or_twice(seed):
    dice = random.Random(seed)

    async def storm():
        async with Scripted(num_replicas=2, max_retries=3, drain_s=30) as fleet:
            streams = []
            for _ in range(NUM_EVENTS):
                await happen(fleet, streams, dice)
                if dice.random() < 0.3:
                    await quiet(40)
                    check_counts(fleet)
            await quiet(40)
            for stream in streams:
                found = [sample.tokens for sample in stream.samples]
                wanted = [[token_of(one.number, i) for i in range(len(one.tokens))] for one in stream.samples]
                assert found == wanted
                stream.close()
            await quiet(40)
            check_counts(fleet)
            assert (fleet.backend.num_sequences, fleet.backend._streams, fleet.backend._losses) == (0, {}, {})
            return fleet.backend.num_moved

    assert asyncio.run(storm())


async def until_dead(fleet, count):
    """Let engine after engine die, each after it has a token of the only request."""
    for _ in range(count):
        while not any(one.running for one in fleet.alive):
            await asyncio.sleep(0)
        (engine,) = (one for one in fleet.alive if one.running)
        give_next(engine, next(iter(engine.running)))
        await quiet()
        engine.die()
        await quiet()


def test_a_request_that_was_with_every_engine_that_died_is_given_up_as_such():
    """It may be what kills them. Its error does not say that there is no engine: a client would send it again."""

    async def poisoned():
        async with Scripted(num_replicas=2, max_retries=3) as fleet:
            stream = fleet.submit()
            await until_dead(fleet, 4)
            with pytest.raises(EnginesLost, match=r"request 'r1': 4 engines were lost while they had it"):
                await anext(stream)
            await fleet.serving(2)
            check_counts(fleet)
            assert fleet.launcher.num_asked == 6

    asyncio.run(poisoned())


def test_a_request_can_be_moved_from_replicas_that_drain_as_often_as_they_do():
    """Fewer replicas are wanted: nobody died of this request."""

    async def drained():
        async with Scripted(num_replicas=2, max_retries=1, drain_s=30) as fleet:
            stream = fleet.submit()
            await quiet()
            give_next(next(one for one in fleet.alive if one.running), 1)
            for turn in range(4):
                (engine,) = fleet.backend._engine_of.values()
                fleet.backend.fleet._drain(engine)
                await fleet.later(1)
                await fleet.later(31)
                assert fleet.backend.num_moved == turn + 1
                await fleet.serving(2)
            assert not stream.is_over
            await until_dead(fleet, 1)
            assert not stream.is_over
            check_counts(fleet)

    asyncio.run(drained())


def test_a_delay_between_two_starts_is_bounded_however_many_have_failed():
    """Two to the power of some thousand is no number of seconds: the starter would die of it."""
    assert [fleets.delay_s(count) for count in (1, 2, 3, 6, 7, 5000)] == [1, 2, 4, 30, 30, 30]


def test_starts_that_failed_beside_an_engine_that_served_say_nothing_when_it_dies(monkeypatch):
    """One place is broken for hours. When the other engine dies it is started again, and not given up at once."""
    monkeypatch.setattr(fleets, "MAX_DELAY_S", 0.0)

    async def broken():
        async with Scripted(num_replicas=2) as made:
            made.launcher.is_broken = True
            made.alive[0].die()
            while made.launcher.num_asked < 20:
                await asyncio.sleep(0)
            (last,) = made.alive
            last.die()
            before = made.launcher.num_asked
            while not made.backend.fleet.is_hopeless:
                await asyncio.sleep(0)
            assert made.launcher.num_asked >= before + fleets.HOPELESS_AFTER
            assert made.backend.state is BackendState.DEAD
            made.launcher.is_broken = False
            await made.serving(2)
            assert made.backend.state is BackendState.READY

    asyncio.run(broken())


def test_starts_that_fail_at_the_same_time_are_one_failure_each(monkeypatch):
    """A machine without memory for a moment: four starters fail once, which is not one that failed four times."""
    monkeypatch.setattr(fleets, "MAX_DELAY_S", 0.0)

    async def broken():
        async with Scripted(num_replicas=4) as made:
            made.launcher.is_broken = True
            for engine in made.alive:
                engine.die()
            while made.launcher.num_asked < 4 + 8:
                await asyncio.sleep(0)
            is_hopeless, made.launcher.is_broken = made.backend.fleet.is_hopeless, False
            await made.serving(4)
            return is_hopeless

    assert not asyncio.run(broken())


@pytest.mark.parametrize("moment", ["waits", "runs", "drains", "without an engine"])
def test_a_request_past_its_time_leaves_nothing_behind_at_any_moment(moment):
    async def late():
        async with Scripted(num_replicas=1) as made:
            stream = made.submit()
            await quiet()
            if moment == "without an engine":
                made.launcher.is_broken = True
                made.alive[0].die()
            elif moment == "runs":
                give_next(made.alive[0], 1)
            elif moment == "drains":
                made.backend.fleet._drain(next(iter(made.backend.fleet.engines.values())))
            await quiet()
            await made.later(1)
            await made.later(1000)
            with pytest.raises(RequestTimedOut):
                await anext(stream)
            check_counts(made)
            assert made.backend.num_sequences == 0

    asyncio.run(late())


def test_of_replicas_with_nothing_to_do_the_newest_are_drained():
    """The others have more in their prefix caches."""

    async def drained():
        async with Scripted(num_replicas=1) as made:
            for count in (2, 3):
                made.backend.fleet.scale_to(count)
                await made.serving(count)
                await quiet()  # its starter has ended too
            made.backend.fleet.scale_to(1)
            return list(made.backend.fleet.engines)

    assert asyncio.run(drained()) == ["r0"]


def reports(number, *tokens, prompt=()):
    return wire.framed(wire.Reports(number, tuple(((one, -0.5, 1),) for one in tokens), prompt))


def test_logprobs_of_a_prompt_that_were_read_before_an_engine_died_do_not_come_twice():
    """Two samples: one has a token. The other's logprobs have come, its first token has not, and the client reads."""
    prompt = tuple(((one, -0.5, 1),) for one in (6, 7))

    async def died():
        async with Scripted(num_replicas=2) as made:
            stream = made.submit((5, 6, 7), n=2, temperature=1.0, logprobs=0, prompt_logprobs=0)
            await quiet()
            (engine,) = (one for one in made.alive if one.running)
            engine.send(reports(1, token_of(1, 0), prompt=prompt))
            give_next(engine, 1)
            engine.send(reports(2, token_of(2, 0), prompt=prompt))
            await quiet()
            await anext(stream)
            engine.die()
            await quiet()
            (engine,) = (one for one in made.alive if one.running)
            assert engine.running[1].params.get("prompt_logprobs") is None  # it has them
            assert engine.running[2].params["prompt_logprobs"] == 0
            for number in (1, 2):
                place = len(wire.words_of(engine.running[number].output))
                more = prompt if number == 2 else ()
                engine.send(reports(number, token_of(number, place), prompt=more))
                give_next(engine, number, FinishReason.LENGTH)
            await quiet()
            last = await anext(stream)
            tables = [list(one.logprobs) for one in last.outputs]
            return last, tables, [sample.prompt_logprobs for sample in stream.samples]

    last, tables, prompts = asyncio.run(died())
    assert last.finished
    assert [[*table] for one in tables for table in one] == [[token_of(1, 0)], [token_of(1, 1)], [token_of(2, 0)]]
    assert [[None if one is None else [*one] for one in found] for found in prompts] == [[None, [6], [7]]] * 2
