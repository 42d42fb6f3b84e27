"""A rank that has gone, or does not come, ends the engine with a typed error, and nobody waits for it for ever."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from playhead import LLM, AsyncEngine, SamplingParams
from playhead.errors import EngineStopped, RankLost, StepFailed

SIZES = {"max_model_len": 128, "max_num_seqs": 1, "max_num_batched_tokens": 8, "kv_memory_bytes": 1 << 23}


def lose(llm, harm):
    """Harm the other rank in the middle of a request; gives what the engine says of it, then and ever after."""
    [other] = llm.engine.worker.leader.ranks.others
    params = SamplingParams(max_tokens=100, temperature=0, ignore_eos=True)
    stream = llm.stream("The", params)
    next(stream)
    harm(other.process)
    with pytest.raises(RankLost) as found:
        list(stream)
    with pytest.raises(RankLost):
        llm.generate("The", params, use_tqdm=False)
    llm.close()
    assert other.process.poll() is not None
    return str(found.value)


def test_a_rank_that_is_stopped_ends_the_engine_with_a_typed_error():
    says = lose(LLM("embedded", tensor_parallel_size=2, **SIZES), lambda process: os.kill(process.pid, signal.SIGSTOP))
    assert says.startswith("rank 1 of 2 has been silent for")


def test_an_async_engine_that_loses_a_rank_ends_its_requests_and_takes_no_more():
    async def lose_it():
        params = SamplingParams(max_tokens=100, temperature=0, ignore_eos=True)
        async with AsyncEngine("embedded", tensor_parallel_size=2, **SIZES) as engine:
            [other] = engine.engine.worker.leader.ranks.others
            stream = engine.generate("The", params, "first")
            await anext(stream)
            other.process.kill()
            with pytest.raises(StepFailed) as found:
                async for _ in stream:
                    pass
            assert isinstance(found.value.__cause__, RankLost)
            with pytest.raises(EngineStopped):
                await anext(engine.generate("The", params, "second"))
        engine.shutdown()

    asyncio.run(lose_it())
