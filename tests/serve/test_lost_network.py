"""A network that is lost without a word between a front and its replicas: a pause for clients, and a typed end.

The front's clock is set by hand, and stands until replicas that are well were heard: no test depends on how fast a
process is.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from playhead.errors import EngineStopped
from playhead.sampling_params import SamplingParams
from playhead.scale.fleet import FleetConfig
from playhead.scale.replicas import ReplicatedBackend
from playhead.serve import wire
from playhead.serve.backend import BackendState
from playhead.serve.contact import PREPARING_S
from playhead.serve.failures import detail_of
from playhead.serve.limits import CHECK_S, ServeLimits
from playhead.testing.resumed import is_same
from tests.serve.backends import CONFIG, GREEDY, both_serve, busiest, first_of, outputs_of, submitted, until
from tests.serve.proxied import ProxiedLauncher

PROMPT = [*range(100, 164)]  # some pages: equal prompts go to the same replica
DRAWN = SamplingParams(max_tokens=160, ignore_eos=True, seed=7, temperature=1.1)
LONG = {
    "logprobs": replace(DRAWN, seed=9, logprobs=2),
    "greedy": replace(GREEDY, max_tokens=160),
    "two samples": replace(DRAWN, seed=8, n=2),
    "drawn": DRAWN,
}
LATE = {"late": replace(GREEDY, max_tokens=40), "late and drawn": replace(DRAWN, seed=10, max_tokens=40)}
NUM_SEQUENCES = 7


def both_ways(proxy):
    proxy.to_engine.cut()
    proxy.to_front.cut()


def in_a_frame(proxy):
    """Logprobs are sent before their tokens, in one write: here they come and the tokens do not."""
    proxy.to_engine.cut()
    proxy.to_front.cut_in_a_frame()


LOSSES = {
    "both ways": both_ways,
    "to the front": lambda proxy: proxy.to_front.cut(),
    "to the engine": lambda proxy: proxy.to_engine.cut(),
    "in a frame": in_a_frame,
}


def started(loop, clock, num_processes, **settings):
    launcher = ProxiedLauncher(CONFIG, num_processes)
    begin = wire.Begin("embedded", wire.config_fields(CONFIG), None)
    fleet = FleetConfig(**settings, stuck_s=1000)  # what is lost here is lost for its silence
    made = ReplicatedBackend(launcher, begin, ServeLimits(), fleet, clock)
    loop.run(made.start())
    return made, launcher


@pytest.fixture(scope="module")
def wanted(llm):
    """What each request gives undisturbed. Before any engine is there: a front must not be away for long."""
    return {name: llm.generate(PROMPT, params)[0] for name, params in {**LONG, **LATE}.items()}


@pytest.fixture(scope="module")
def fronted(loop, clock, wanted):
    """A backend and its launcher, for all tests that leave two replicas."""
    made, launcher = started(loop, clock, 100, num_replicas=2)
    yield made, launcher
    loop.run(made.close())
    assert asyncio.all_tasks(loop.get_loop()) == set()


async def lose(backend, clock, victim):
    """Let time pass until this replica counts as lost; gives how many sequences it had then.

    The backend's own timer may see it first.
    """
    samples = victim.samples  # left as it was when its sequences are moved
    for _ in range(int(3 * PREPARING_S / CHECK_S)):  # it may have been in the middle of a capture
        clock.now += CHECK_S
        backend.check()
        if victim._contact is None:
            await until(lambda: victim.name not in backend.fleet.engines)
            return len(samples)
        others = [one for one in backend.fleet.engines.values() if one is not victim]
        await until(lambda others=others: all(one._contact.silent_s < 4 * CHECK_S for one in others))
    raise AssertionError("it was never lost")


def open_sockets():
    """Sockets of this process: the front's, and those of the proxies."""
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found += os.readlink(link).startswith("socket:")
    return found


async def settled(backend):
    """Wait until two replicas serve, nothing is left of those that were lost, and all pages are free."""
    await both_serve(backend)
    await until(lambda: not backend.fleet._tasks)
    for _ in range(20):
        await asyncio.sleep(0)  # transports close one turn of the loop after they were told to
    for now in (await backend.scrape()).snapshots.values():
        assert (now.num_running, now.num_waiting, [group.num_held for group in now.groups]) == (0, 0, [0, 0])
    return open_sockets(), len(asyncio.all_tasks())


@pytest.mark.parametrize("loss", LOSSES)
def test_streams_go_on_exactly_when_the_network_to_their_replica_is_lost(fronted, loop, clock, wanted, loss):
    """Some run and some wait. Two come after the loss, which nobody knows of yet."""
    backend, launcher = fronted

    async def cut():
        before = await settled(backend)
        streams = [submitted(backend, name, PROMPT, params) for name, params in LONG.items()]
        for stream in streams[:3]:
            await first_of(stream)
        victim, num_lost = busiest(backend), backend.fleet.counts.num_lost
        LOSSES[loss](launcher.proxies[victim.pid])
        streams += [submitted(backend, name, PROMPT, params) for name, params in LATE.items()]
        assert len(victim.samples) == NUM_SEQUENCES
        num_left = await lose(backend, clock, victim)
        found = [(await outputs_of(stream))[-1] for stream in streams]
        assert backend.fleet.counts.num_lost == num_lost + 1
        return num_left, found, before, await settled(backend)

    moved = backend.num_moved
    num_left, found, before, after = loop.run(cut())
    # A replica that hears nothing may have come to the end of what it had before.
    assert num_left == NUM_SEQUENCES or (loss == "to the engine" and num_left >= len(LATE))
    assert backend.num_moved == moved + num_left
    for name, output in zip(wanted, found, strict=True):
        assert [one.token_ids for one in output.outputs] == [one.token_ids for one in wanted[name].outputs], name
        assert all(map(is_same, output.outputs, wanted[name].outputs)), name
    assert after == before
    assert backend.num_sequences == 0


def test_an_idle_replica_whose_network_is_lost_is_replaced(fronted, loop, clock):
    """Nobody has to wait for it to find out."""
    backend, launcher = fronted

    async def cut():
        before = await settled(backend)
        victim = busiest(backend)
        both_ways(launcher.proxies[victim.pid])
        assert await lose(backend, clock, victim) == 0
        return before, await settled(backend)

    before, after = loop.run(cut())
    assert after == before


def test_a_front_that_stalls_takes_no_replica_for_lost(fronted, loop, clock):
    """It was stopped for an hour, ten times, and has read nothing meanwhile."""
    backend, _ = fronted

    async def stall():
        await settled(backend)
        names = list(backend.fleet.engines)
        for _ in range(10):
            clock.now += 3600
            backend.check()
            await until(lambda: all(one._contact.silent_s == 0 for one in backend.fleet.engines.values()))
        assert list(backend.fleet.engines) == names

    loop.run(stall())


def test_the_last_replicas_requests_end_with_a_typed_error_when_they_may_not_be_moved(loop, clock):
    backend, launcher = started(loop, clock, 1, num_replicas=1, max_retries=0)

    async def cut():
        stream = submitted(backend, "r", PROMPT, LONG["greedy"])
        await first_of(stream)
        victim = busiest(backend)
        both_ways(launcher.proxies[victim.pid])
        assert await lose(backend, clock, victim) == 1
        assert backend.state is BackendState.RESTARTING
        with pytest.raises(EngineStopped, match="'r'") as raised:
            await outputs_of(stream)
        await backend.close()
        return raised.value

    status, detail = detail_of(loop.run(cut()))
    assert (status, detail.code) == (503, "engine_stopped")
    assert (backend.num_moved, backend.num_sequences) == (0, 0)
