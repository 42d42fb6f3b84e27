"""A backend gives what the library gives, refuses what it has no room for, and leaves nothing behind."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from playhead.engine.config import EngineConfig
from playhead.engine.front import RequestOptions
from playhead.errors import EngineStopped, QueueFull, RequestTimedOut
from playhead.kv.ledger import Ledger
from playhead.llm import LLM
from playhead.sampling_params import RequestOutputKind, SamplingParams
from playhead.serve.backend import BackendState
from playhead.serve.limits import ServeLimits
from playhead.serve.local import LocalBackend

CONFIG = EngineConfig(max_model_len=96, max_num_seqs=4, kv_memory_bytes=1 << 23, seed=3)
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
ENDLESS = replace(GREEDY, max_tokens=90)


class HandClock:
    """A clock that stands until it is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def running(**options):
    backend = LocalBackend("embedded", CONFIG, **options)
    await backend.start()
    try:
        yield backend
    finally:
        await backend.close()


@pytest.fixture(scope="module")
def llm():
    with LLM("embedded", CONFIG) as made:
        yield made


def submitted(backend, request_id, prompt, params):
    return backend.submit(request_id, backend.reader.check(prompt, params), RequestOptions())


async def outputs_of(stream):
    return [output async for output in stream]


async def last(backend, prompt, params, request_id="r"):
    return (await outputs_of(submitted(backend, request_id, prompt, params)))[-1]


def facts_of(output):
    """All of an output that a client can see and that is not a time."""
    return (output.prompt, output.prompt_token_ids, output.outputs, output.prompt_logprobs, output.finished)


CASES = {
    "greedy": GREEDY,
    "seeded": SamplingParams(seed=7, max_tokens=6),
    "filtered": SamplingParams(seed=8, top_p=0.9, top_k=40, max_tokens=6),
    "three samples": SamplingParams(n=3, seed=5, max_tokens=4),
    "a stop string": replace(GREEDY, stop=("a",), max_tokens=30),
    "a stop string shown": replace(GREEDY, stop=("e", "zz"), max_tokens=30, include_stop_str_in_output=True),
    "a stop string late": replace(GREEDY, stop=("e",), min_tokens=12, max_tokens=30),
    "a stop token": replace(GREEDY, stop_token_ids=tuple(range(0, 4096, 2)), max_tokens=30),
    "logprobs": replace(GREEDY, logprobs=3),
    "logprobs of the prompt": replace(GREEDY, prompt_logprobs=2),
    "bias": replace(GREEDY, logit_bias={17: 90.0}),
    "bad words": replace(GREEDY, bad_words=("the", "a")),
    "no text": replace(GREEDY, detokenize=False),
    "penalties": replace(GREEDY, repetition_penalty=1.5, presence_penalty=0.5),
    "only the end": replace(GREEDY, output_kind=RequestOutputKind.FINAL_ONLY),
}


def test_a_backend_gives_what_the_library_gives(llm):
    wanted = {name: llm.generate("The whale", params)[0] for name, params in CASES.items()}

    async def one_by_one():  # in other batches the last bits of logprobs are others
        async with running() as backend:
            return {name: await last(backend, "The whale", params, name) for name, params in CASES.items()}

    found = asyncio.run(one_by_one())
    assert {name: facts_of(output) for name, output in found.items()} == {
        name: facts_of(output) for name, output in wanted.items()
    }


def test_new_parts_add_up_to_the_whole():
    async def both():
        async with running() as backend:
            whole = await last(backend, "The whale", ENDLESS)
            parts = await outputs_of(
                submitted(backend, "p", "The whale", replace(ENDLESS, output_kind=RequestOutputKind.DELTA))
            )
            return whole, parts

    whole, parts = asyncio.run(both())
    assert "".join(part.outputs[0].text for part in parts) == whole.outputs[0].text
    assert [token for part in parts for token in part.outputs[0].token_ids] == whole.outputs[0].token_ids
    assert [part.finished for part in parts] == [False] * (len(parts) - 1) + [True]


def test_a_full_queue_refuses_before_there_is_a_stream():
    async def crowd():
        async with running(limits=ServeLimits(max_queued=2)) as backend:
            streams = [submitted(backend, f"r{i}", [5 + i, 6], ENDLESS) for i in range(6)]
            with pytest.raises(QueueFull, match="at most 6"):
                submitted(backend, "one too many", [5], GREEDY)
            assert 1 <= backend.retry_after_s <= 60
            return await asyncio.gather(*(outputs_of(stream) for stream in streams))

    assert all(outputs[-1].finished for outputs in asyncio.run(crowd()))


def test_closed_streams_leave_no_page_behind():
    async def leave():
        async with running() as backend:
            streams = [submitted(backend, f"r{i}", [5 + i, 6, 7], replace(ENDLESS, n=1 + i % 2)) for i in range(8)]
            async for _ in streams[0]:
                break
            for stream in streams:
                stream.close()
                stream.close()
            while (await backend.snapshot()).num_running + (await backend.snapshot()).num_waiting:
                pass
            assert Ledger(backend.engine.worker.kv).audit() == []
            return backend.engine.worker.kv.sequences

    assert not asyncio.run(leave())


@pytest.mark.parametrize(("wait_s", "what"), [(61, "waited for more than 60 s"), (601, "ran for more than 600 s")])
def test_a_request_past_its_time_ends_with_a_typed_error(wait_s, what):
    clock = HandClock()

    async def late():
        async with running(clock=clock, limits=ServeLimits(max_queued=8)) as backend:
            streams = [submitted(backend, f"r{i}", [5, 6], ENDLESS) for i in range(6)]
            if "ran" in what:
                async for _ in streams[0]:
                    break
                backend.check()
            clock.now += wait_s
            backend.check()
            with pytest.raises(RequestTimedOut, match=what):
                await outputs_of(streams[0 if "ran" in what else -1])
            return (await last(backend, "The whale", GREEDY)).finished

    assert asyncio.run(late())


def test_a_closed_backend_ends_its_streams_with_a_typed_error():
    async def close():
        async with running() as backend:
            assert backend.state is BackendState.READY
            stream = submitted(backend, "r", [5, 6], ENDLESS)
            await backend.close()
            assert backend.state is BackendState.DEAD
            with pytest.raises(EngineStopped):
                await outputs_of(stream)
            with pytest.raises(EngineStopped):
                backend.submit("late", None, RequestOptions())

    asyncio.run(close())
