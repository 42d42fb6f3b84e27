"""Several engines behind one backend: what clients see when one of them is killed, stuck, drained or added.

One backend for all tests: each leaves two engines that serve, or says so.
"""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace

import pytest

from playhead.engine.front import RequestOptions
from playhead.errors import ConfigError, EngineStopped
from playhead.sampling_params import RequestOutputKind, SamplingParams
from playhead.scale import fleet
from playhead.scale.autoscale import Autoscaler, ScaleLimits
from playhead.scale.fleet import FleetConfig
from playhead.scale.launch import LocalLauncher
from playhead.scale.replicas import ReplicatedBackend
from playhead.scale.router import Reason
from playhead.serve import engine_child, wire
from playhead.serve.backend import BackendState
from playhead.serve.config import ServeConfig
from playhead.serve.limits import ServeLimits
from playhead.structured_outputs import StructuredOutputs
from playhead.testing.resumed import is_same
from tests.serve.backends import (
    CONFIG,
    ENDLESS,
    GREEDY,
    both_serve,
    busiest,
    first_of,
    outputs_of,
    submitted,
    until,
)

LONG = replace(GREEDY, max_tokens=80)
DRAWN = SamplingParams(max_tokens=80, ignore_eos=True, seed=7, temperature=1.1)
DIGITS = StructuredOutputs(regex="[0-9 ]{60}")
CASES = {
    "greedy": LONG,
    "drawn": DRAWN,
    "filtered": replace(DRAWN, seed=8, top_p=0.9, top_k=40),
    "two samples": replace(DRAWN, n=2, max_tokens=60),
    "penalties": replace(DRAWN, seed=9, frequency_penalty=0.7, repetition_penalty=1.2),
    "logprobs": replace(DRAWN, seed=10, logprobs=2, prompt_logprobs=1),
    "a stop string": replace(DRAWN, seed=11, stop=("zzz",), min_tokens=3),
    "a form": replace(DRAWN, seed=12, structured_outputs=DIGITS, ignore_eos=False),
}


@pytest.fixture(scope="module")
def backend(loop, clock):
    begin = wire.Begin("embedded", wire.config_fields(CONFIG), None)
    settings = FleetConfig(num_replicas=2, max_retries=2, drain_s=30, stuck_s=15)
    made = ReplicatedBackend(LocalLauncher(CONFIG), begin, ServeLimits(), settings, clock)
    loop.run(made.start())
    yield made
    loop.run(made.close())
    assert asyncio.all_tasks(loop.get_loop()) == set()


def kill(engine):
    os.kill(engine.pid, signal.SIGKILL)


def test_requests_of_all_sorts_go_on_exactly_when_their_replica_is_killed(backend, loop, llm):
    """Some run and some wait. One has no seed: the front gives it one, so that every engine draws the same."""
    wanted = {name: llm.generate("The whale", params)[0] for name, params in CASES.items()}
    deltas, seedless = replace(DRAWN, output_kind=RequestOutputKind.DELTA), replace(DRAWN, seed=None)

    async def killed():
        asked = {"deltas": deltas, "seedless": seedless, **CASES}
        streams = {name: submitted(backend, name, "The whale", params) for name, params in asked.items()}
        parts = [await first_of(streams["deltas"])]
        await until(lambda: sum(stream.has_begun for stream in streams.values()) >= 3)
        kill(busiest(backend))
        found = await asyncio.gather(*(outputs_of(stream) for stream in streams.values()))
        await both_serve(backend)
        parts += found[0]
        return parts, streams["seedless"], {name: outputs[-1] for name, outputs in zip(asked, found, strict=True)}

    before = backend.num_moved
    parts, stream, found = loop.run(killed())
    assert backend.num_moved >= before + 4
    for name, output in wanted.items():
        assert [one.token_ids for one in found[name].outputs] == [one.token_ids for one in output.outputs], name
        assert all(map(is_same, found[name].outputs, output.outputs)), name
        assert len(found[name].prompt_logprobs or ()) == len(output.prompt_logprobs or ())
    whole = wanted["drawn"].outputs[0]
    assert "".join(part.outputs[0].text for part in parts) == whole.text
    assert [token for part in parts for token in part.outputs[0].token_ids] == whole.token_ids
    seeded = replace(DRAWN, seed=stream.samples[0].request.params.seed)
    assert found["seedless"].outputs[0].token_ids == llm.generate("The whale", seeded)[0].outputs[0].token_ids
    assert backend.state is BackendState.READY


def test_requests_wait_while_no_replica_is_there_and_end_when_moved_too_often(backend, loop, llm):
    """A request that was with every engine that died may be what kills them: it ends with a typed error."""
    wanted = llm.generate("The whale", LONG)[0].outputs[0].token_ids

    async def killed():
        poison = submitted(backend, "poison", [5, 6, 7], ENDLESS)
        for turn in range(3):
            await first_of(poison)
            engine = busiest(backend)
            os.kill(engine.pid, signal.SIGSTOP)  # no further token: the request cannot end before it is killed
            kill(engine)
            await until(lambda engine=engine: engine.name not in backend.fleet.engines)
            if turn == 1:
                assert backend.state is BackendState.RESTARTING
                new, gone = (submitted(backend, name, "The whale", LONG) for name in ("new", "gone"))
                gone.close()
        with pytest.raises(EngineStopped, match="'poison'"):
            await outputs_of(poison)
        found = (await outputs_of(new))[-1].outputs[0].token_ids
        await both_serve(backend)
        return found

    assert loop.run(killed()) == wanted
    assert backend.num_sequences == 0


def test_a_replica_that_is_stuck_is_replaced_and_its_requests_go_on(backend, loop, clock, llm):
    wanted = llm.generate("The whale", LONG)[0].outputs[0].token_ids

    async def stuck():
        stream = submitted(backend, "stuck", "The whale", LONG)
        await first_of(stream)
        engine = busiest(backend)
        os.kill(engine.pid, signal.SIGSTOP)
        for seconds in (5, 5, 5, 5, 5):
            clock.now += seconds
            backend.check()
        assert engine.name not in backend.fleet.engines
        tokens = (await outputs_of(stream))[-1].outputs[0].token_ids
        await both_serve(backend)
        return tokens

    assert loop.run(stuck()) == wanted


def test_a_replica_that_is_drained_finishes_what_it_has_and_gets_nothing_new(backend, loop):
    async def drained():
        stream = submitted(backend, "old", [5, 6, 7], replace(ENDLESS, max_tokens=300))
        await first_of(stream)
        other = next(engine for engine in backend.fleet.engines.values() if not engine.samples)
        more = [submitted(backend, f"more {i}", [9, i], ENDLESS) for i in range(30)]
        assert other.samples
        for one in more:
            one.close()
        backend.fleet.scale_to(1)  # the one with least to do goes: `other`
        assert list(backend.fleet.draining) == [other.name]
        before = backend.num_moved
        last = [submitted(backend, f"late {i}", [9, i], GREEDY) for i in range(8)]
        assert not other.samples
        found = [await outputs_of(one) for one in (stream, *last)]
        backend.check()
        await until(lambda: not backend.fleet.draining)
        assert backend.num_moved == before
        backend.fleet.scale_to(2)
        await both_serve(backend)
        return [outputs[-1].finished for outputs in found]

    assert loop.run(drained()) == [True] * 9


def test_requests_of_a_replica_that_drains_too_long_go_on_elsewhere(backend, loop, clock, llm):
    wanted = llm.generate("The whale", LONG)[0].outputs[0].token_ids

    async def drained():
        streams = [submitted(backend, f"old {i}", "The whale", LONG) for i in range(2)]
        await first_of(streams[0])
        engine = busiest(backend)
        backend.fleet._drain(engine)
        clock.now += 31
        backend.check()
        assert not backend.fleet.draining
        found = [(await outputs_of(stream))[-1].outputs[0].token_ids for stream in streams]
        await both_serve(backend)
        return found

    assert loop.run(drained()) == [wanted] * 2


def test_the_number_of_replicas_follows_the_load_and_loses_nothing(backend, loop, clock, monkeypatch):
    limits = ScaleLimits(min_replicas=1, max_replicas=2, target_load=2, up_after_s=2, down_after_s=10)
    monkeypatch.setattr(backend.fleet, "_scaler", Autoscaler(limits))

    async def follow():
        for _ in range(2):  # nothing to do, for long enough
            backend.check()
            clock.now += 11
        backend.check()
        await until(lambda: not backend.fleet.draining)
        assert (len(backend.fleet.engines), backend.fleet.num_starting) == (1, 0)
        streams = [submitted(backend, f"r{i}", [5 + i] * 20, LONG) for i in range(6)]
        backend.check()
        clock.now += 3
        backend.check()
        assert backend.fleet.num_starting == 1
        ends = [(await outputs_of(stream))[-1].finished for stream in streams]
        await both_serve(backend)
        return ends

    assert loop.run(follow()) == [True] * 6


def test_prompts_with_a_shared_beginning_go_to_the_replica_that_has_it(backend, loop):
    begins = [[100 + i] * 64 for i in range(6)]

    async def asked():
        chosen = {}
        for turn in range(4):
            for i, begin in enumerate(begins):
                stream = submitted(backend, f"{turn} {i}", [*begin, turn, 7], GREEDY)
                chosen.setdefault(i, set()).add(backend._engine_of[stream.samples[0].number].name)
                output = (await outputs_of(stream))[-1]
                assert output.num_cached_tokens >= (48 if turn else 0)
        return chosen

    before = backend.router.num_chosen[Reason.PREFIX]
    chosen = loop.run(asked())
    assert all(len(names) == 1 for names in chosen.values())
    assert backend.router.num_chosen[Reason.PREFIX] == before + 18


def test_tenants_share_no_prefix_and_no_knowledge_of_one(backend, loop):
    prompt = [900] * 64

    async def asked():
        cached = []
        for salt in ("one", "two", "one"):
            checked = backend.reader.check(prompt, GREEDY)
            output = (await outputs_of(backend.submit("r", checked, RequestOptions(salt=salt))))[-1]
            cached.append(output.num_cached_tokens)
        return cached

    reasons = backend.router.num_chosen.copy()
    first, second, third = loop.run(asked())
    assert (first, second) == (0, 0)
    assert third >= 48
    assert backend.router.num_chosen - reasons == {Reason.UNKNOWN: 2, Reason.PREFIX: 1}


class FewProcesses:
    """A launcher that has so many processes and no more."""

    def __init__(self, count):
        self._launcher, self.num_left = LocalLauncher(CONFIG), count

    async def launch(self):
        if not self.num_left:
            raise EngineStopped("launcher: nothing left")
        self.num_left -= 1
        return await self._launcher.launch()

    async def close(self):
        await self._launcher.close()


def with_few_processes(count, num_replicas):
    begin = wire.Begin("embedded", wire.config_fields(CONFIG), None)
    return ReplicatedBackend(FewProcesses(count), begin, ServeLimits(), FleetConfig(num_replicas=num_replicas))


def test_a_replica_that_cannot_be_started_ends_the_start_in_words(loop):
    async def start():
        backend = with_few_processes(0, 2)
        with pytest.raises(EngineStopped, match="nothing left"):
            await backend.start()
        assert backend.state is BackendState.DEAD

    loop.run(start())


def test_requests_end_with_a_typed_error_when_no_replica_can_be_started_any_more(loop, monkeypatch):
    monkeypatch.setattr(fleet, "HOPELESS_AFTER", 1)

    async def run():
        backend = with_few_processes(1, 1)
        await backend.start()
        stream = submitted(backend, "r", [5, 6, 7], ENDLESS)
        await first_of(stream)
        kill(busiest(backend))
        with pytest.raises(EngineStopped, match="'r'"):  # the backend's own timer sees to it
            await outputs_of(stream)
        assert backend.state is BackendState.DEAD
        with pytest.raises(EngineStopped):
            submitted(backend, "late", [5], GREEDY)
        await backend.close()

    loop.run(run())


class OnePlace:
    """A launcher of a machine with one GPU: there is no place for a second process before the first has ended."""

    def __init__(self):
        self._launcher, self._child, self.num_refused = LocalLauncher(CONFIG), None, 0

    async def launch(self):
        if self._child is not None and self._child.process.poll() is None:
            self.num_refused += 1
            raise ConfigError("replicas: not enough GPUs are free")
        launched = await self._launcher.launch()
        self._child = launched.host
        return launched

    async def close(self):
        await self._launcher.close()


def test_requests_wait_for_the_place_of_a_stopped_replica(loop, monkeypatch):
    """A process that must be killed has its GPU for a while. That its place is taken says nothing of later starts."""
    monkeypatch.setattr(fleet, "HOPELESS_AFTER", 1)
    monkeypatch.setattr(engine_child, "END_S", 1.5)
    begin = wire.Begin("embedded", wire.config_fields(CONFIG), None)
    launcher = OnePlace()

    async def run():
        backend = ReplicatedBackend(launcher, begin, ServeLimits(), FleetConfig(num_replicas=1, silent_s=1.0))
        await backend.start()
        stream = submitted(backend, "r", [5, 6, 7], LONG)
        await first_of(stream)
        os.kill(busiest(backend).pid, signal.SIGSTOP)
        assert (await outputs_of(stream))[-1].finished
        await backend.close()

    loop.run(run())
    assert launcher.num_refused, "the place was taken once"


def test_the_number_of_replicas_can_be_wrong_in_words():
    for fields, words in (
        ({"autoscale": "2"}, "autoscale: found '2'"),
        ({"autoscale": "3:2"}, "autoscale: found '3:2'"),
        ({"autoscale": "2:4"}, "replicas: found 1 with autoscale 2:4"),
        ({"replicas": 0}, "replicas: found 0"),
    ):
        with pytest.raises(ConfigError, match=words):
            ServeConfig(**fields)
    assert ServeConfig(replicas=2, autoscale="2:4").autoscale_bounds == (2, 4)
    assert not ServeConfig().has_replicas
