"""A backend gives what the library gives, refuses what it has no room for, and leaves nothing behind.

Every test runs for the engine in this process and for the engine in a process of its own.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest

from playhead.errors import EngineStopped, QueueFull, RequestError, RequestTimedOut
from playhead.sampling_params import RequestOutputKind, SamplingParams
from playhead.serve.backend import BackendState
from playhead.serve.limits import ServeLimits
from playhead.serve.local import LocalBackend
from playhead.serve.metrics import exposition
from playhead.serve.recorder import Recorder
from playhead.serve.remote import RemoteBackend
from playhead.structured_outputs import StructuredOutputs
from tests.serve.backends import CONFIG, ENDLESS, GREEDY, KINDS, first_of, last, outputs_of, submitted

CASES = {
    "greedy": GREEDY,
    "seeded": SamplingParams(seed=7, max_tokens=6),
    "filtered": SamplingParams(seed=8, top_p=0.9, top_k=40, max_tokens=6),
    "three samples": SamplingParams(n=3, seed=5, max_tokens=4),
    "a stop string": replace(GREEDY, stop=("a",), max_tokens=30),
    "a stop string shown": replace(GREEDY, stop=("e", "zz"), max_tokens=30, include_stop_str_in_output=True),
    "a stop string late": replace(GREEDY, stop=("e",), min_tokens=12, max_tokens=30),
    "a stop token": replace(GREEDY, stop_token_ids=tuple(range(0, 4096, 2)), max_tokens=30),
    "a stop token after some": replace(GREEDY, stop_token_ids=tuple(range(4000)), min_tokens=4, max_tokens=30),
    "logprobs": replace(GREEDY, logprobs=3),
    "logprobs of the prompt": replace(GREEDY, prompt_logprobs=2),
    "bias": replace(GREEDY, logit_bias={17: 90.0}),
    "its own end": replace(GREEDY, logit_bias={2: 90.0}, ignore_eos=False),
    "bad words": replace(GREEDY, bad_words=("the", "a")),
    "no text": replace(GREEDY, detokenize=False),
    "penalties": replace(GREEDY, repetition_penalty=1.5, presence_penalty=0.5),
    "one of two texts": replace(GREEDY, structured_outputs=StructuredOutputs(choice=["yes", "no"]), ignore_eos=False),
    "a number": replace(GREEDY, structured_outputs=StructuredOutputs(regex="[0-9]{3}"), ignore_eos=False),
    "only the end": replace(GREEDY, output_kind=RequestOutputKind.FINAL_ONLY),
}


@pytest.fixture(scope="module", params=KINDS)
def backend(request, loop, clock):
    """One started backend for all tests of a kind: each leaves it idle."""
    made = KINDS[request.param]("embedded", CONFIG, ServeLimits(max_queued_requests=196), clock=clock)
    loop.run(made.start())
    yield made
    loop.run(made.close())


@pytest.fixture(autouse=True)
def _idle_afterwards(backend, loop):
    yield
    for now in loop.run(backend.scrape()).snapshots.values():
        assert (now.num_running, now.num_waiting, now.stats.num_violations) == (0, 0, 0)
        assert [group.num_held for group in now.groups] == [0] * len(now.groups)


def facts_of(output):
    """All of an output that a client can see and that is not a time."""
    return (output.prompt, output.prompt_token_ids, output.outputs, output.prompt_logprobs, output.finished)


def test_a_backend_gives_what_the_library_gives(backend, loop, llm):
    """One request after the other: in other batches the last bits of logprobs are others."""
    wanted = {name: facts_of(llm.generate("The whale", params)[0]) for name, params in CASES.items()}

    async def one_by_one():
        return {name: facts_of(await last(backend, "The whale", params, name)) for name, params in CASES.items()}

    assert loop.run(one_by_one()) == wanted


def test_requests_of_all_sorts_at_once_get_the_tokens_they_get_alone(backend, loop, llm):
    wanted = {name: llm.generate("The whale", params)[0] for name, params in CASES.items()}

    async def at_once():
        asked = [last(backend, "The whale", params, name) for name, params in CASES.items()]
        return dict(zip(CASES, await asyncio.gather(*asked), strict=True))

    found = loop.run(at_once())
    assert {
        name: [(one.text, one.token_ids, one.stop_reason) for one in output.outputs] for name, output in found.items()
    } == {
        name: [(one.text, one.token_ids, one.stop_reason) for one in output.outputs] for name, output in wanted.items()
    }


def test_two_hundred_callers_each_get_their_own(backend, loop, llm):
    prompts = [[5 + i, 6, 7] for i in range(10)]
    params = replace(GREEDY, max_tokens=3)
    wanted = [output.outputs[0].token_ids for output in llm.generate(prompts, params)]

    async def everybody():
        asked = [last(backend, prompts[i % 10], params, f"r{i}") for i in range(200)]
        return [output.outputs[0].token_ids for output in await asyncio.gather(*asked)]

    assert loop.run(everybody()) == wanted * 20


def test_new_parts_add_up_to_the_whole(backend, loop):
    params = replace(ENDLESS, max_tokens=60)

    async def both():
        whole = await last(backend, "The whale", params)
        news = submitted(backend, "p", "The whale", replace(params, output_kind=RequestOutputKind.DELTA))
        return whole, await outputs_of(news)

    whole, parts = loop.run(both())
    assert "".join(part.outputs[0].text for part in parts) == whole.outputs[0].text
    assert [token for part in parts for token in part.outputs[0].token_ids] == whole.outputs[0].token_ids
    assert [part.finished for part in parts] == [False] * (len(parts) - 1) + [True]


def test_a_consumer_that_reads_late_gets_one_output_with_everything(backend, loop, llm):
    """What came meanwhile is one output, so it cannot have piled up."""
    wanted = llm.generate("The whale", GREEDY)[0].outputs[0].token_ids

    async def late():
        stream = submitted(backend, "late", "The whale", GREEDY)
        while not stream.is_over:
            await asyncio.sleep(0)
        return await outputs_of(stream)

    (only,) = loop.run(late())
    assert only.outputs[0].token_ids == wanted


def test_a_full_queue_refuses_before_there_is_a_stream(backend, loop):
    async def crowd():
        streams = [submitted(backend, f"r{i}", [5 + i, 6], ENDLESS) for i in range(200)]
        assert backend.max_sequences == 200
        with pytest.raises(QueueFull, match="at most 200"):
            submitted(backend, "one too many", [5], GREEDY)
        with pytest.raises(RequestError, match="an id in use"):
            submitted(backend, "r3", [5], GREEDY)
        assert 1 <= backend.retry_after_s <= 60
        for stream in streams:
            stream.close()
        while (now := await backend.snapshot()).num_running + now.num_waiting:
            pass  # a snapshot that would come late shows the engine as it was
        return await last(backend, [5], GREEDY)

    assert loop.run(crowd()).finished


def test_the_first_look_after_streams_were_closed_finds_nothing_of_them(backend, loop):
    """The engine hears of it before its next step: the step under way is the last that computes them."""

    async def leave():
        streams = [submitted(backend, f"r{i}", [5 + i, 6, 7], replace(ENDLESS, n=1 + i % 2)) for i in range(8)]
        await first_of(streams[0])
        for stream in streams:
            stream.close()
            stream.close()
        return await backend.snapshot(), [await outputs_of(stream) for stream in streams[1:]]

    now, rest = loop.run(leave())
    assert (now.num_running, now.num_waiting) == (0, 0)
    assert rest == [[]] * 7


@contextmanager
def hanging(backend, monkeypatch):
    """The engine does nothing in here, whatever it has to do."""
    if not isinstance(backend, LocalBackend):
        pids = [backend.pid] if isinstance(backend, RemoteBackend) else [e.pid for e in backend.fleet.engines.values()]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        return
    permits, step = threading.Semaphore(0), backend.engine.step
    monkeypatch.setattr(backend.engine, "step", lambda: permits.acquire() and step())
    try:
        yield
    finally:
        permits.release(1000)


def test_a_storm_of_aborts_leaves_nothing_and_changes_nobodys_tokens(backend, loop, llm):
    """Half of the callers leave: before the engine hears of them, in the queue, or in the middle of their tokens."""
    rng, num_requests = random.Random(7), int(os.environ.get("PLAYHEAD_STORM", "60"))
    prompts = [[5 + i, 6, 7] for i in range(8)]
    params = replace(GREEDY, max_tokens=12)
    wanted = [output.outputs[0].token_ids for output in llm.generate(prompts, params)]
    places = asyncio.Semaphore(100)

    async def call(i, num_read):
        """Its tokens; None for one that leaves after so many outputs."""
        async with places:
            stream = submitted(backend, f"r{i}", prompts[i % 8], params)
            if num_read == 0:
                stream.close()
            num_left, newest = num_read, None
            async for output in stream:
                num_left, newest = num_left - 1, output.outputs[0].token_ids
                if num_left == 0:
                    stream.close()
            return newest if num_read == 99 else None

    async def storm():
        read = [rng.choice([0, 1, 2, 5, 99, 99, 99, 99]) for _ in range(num_requests)]
        return await asyncio.gather(*(call(i, num_read) for i, num_read in enumerate(read)))

    found = loop.run(storm())
    assert all(tokens in (None, wanted[i % 8]) for i, tokens in enumerate(found))
    assert 0 < sum(tokens is None for tokens in found) < num_requests
    assert len(asyncio.all_tasks(loop.get_loop())) <= 1  # the timer


def test_a_request_that_waits_too_long_ends_with_a_typed_error(backend, loop, clock, monkeypatch):
    """Even where the engine is stuck and cannot be told."""

    async def late():
        with hanging(backend, monkeypatch):
            stream = submitted(backend, "late", [5, 6], ENDLESS)
            clock.now += 61
            backend.check()
            with pytest.raises(RequestTimedOut, match="'late': waited for more than 60 s"):
                await outputs_of(stream)
        return await last(backend, "The whale", GREEDY)

    assert loop.run(late()).finished


def test_a_request_that_runs_too_long_ends_with_a_typed_error(backend, loop, clock):
    async def late():
        stream = submitted(backend, "late", [5, 6], ENDLESS)
        await first_of(stream)
        backend.check()  # sees it begun
        clock.now += 601
        backend.check()
        with pytest.raises(RequestTimedOut, match="'late': ran for more than 600 s"):
            await outputs_of(stream)
        return await last(backend, "The whale", GREEDY)

    assert loop.run(late()).finished


def test_a_request_that_the_engine_refuses_ends_alone(backend, loop):
    """The sampler finds that no token is left. The prompt's check cannot know that."""
    nothing = replace(GREEDY, allowed_token_ids=[7], stop_token_ids=[7], min_tokens=3)

    async def refused():
        stream = submitted(backend, "refused", [5], nothing)
        with pytest.raises(RequestError, match="allowed_token_ids"):
            await outputs_of(stream)
        return await last(backend, [5], GREEDY)

    assert loop.run(refused()).finished


def test_engines_that_hang_with_work_are_wedged_until_they_go_on(backend, loop, clock, monkeypatch):
    """One of several engines that does not hang would serve on. Of eight prompts, each of two has some."""

    async def hang():
        with hanging(backend, monkeypatch):
            clock.now += 100
            backend.check()
            assert backend.state is BackendState.READY  # without work there is nothing to be late with
            streams = [submitted(backend, f"r{i}", [5 + i] * 20, GREEDY) for i in range(8)]
            clock.now += 4
            backend.check()
            assert backend.state is BackendState.READY
            clock.now += 0.5
            backend.check()
            assert backend.state is BackendState.WEDGED
            assert (await backend.snapshot()).num_running == 0  # as it was when it last answered
        ends = [(await outputs_of(stream))[-1].finished for stream in streams]
        backend.check()
        assert backend.state is BackendState.READY
        return ends

    assert loop.run(hang()) == [True] * 8


@pytest.mark.parametrize("kind", KINDS)
def test_a_backend_that_was_not_started_refuses(kind):
    backend = KINDS[kind]("embedded", CONFIG)
    assert backend.state is BackendState.STARTING
    with pytest.raises(EngineStopped):
        backend.submit("early", None, None)


@pytest.mark.parametrize("kind", KINDS)
def test_a_backend_that_is_closed_before_it_started_has_metrics_and_no_model(kind):
    async def work():
        backend = KINDS[kind]("embedded", CONFIG)
        await backend.close()
        with pytest.raises(EngineStopped):
            _ = backend.facts
        return await exposition(Recorder(), backend)

    assert b'playhead_engine_state{model_name="",state="dead"} 1.0' in asyncio.run(work())


def test_a_graph_of_steps_with_a_form_counts_as_being_captured(llm):
    """Its capture takes as long as any other, and must not pass for an engine that is stuck."""
    llm.generate("The whale", SamplingParams(structured_outputs={"choice": ["yes", "no"]}))
    (runner, *_) = llm.engine.worker.masked.decoders.values()
    assert not llm.engine.worker.is_capturing
    runner.is_capturing = True
    assert llm.engine.worker.is_capturing
    runner.is_capturing = False
