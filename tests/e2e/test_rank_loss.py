"""A rank that has gone, or does not come, ends the engine with a typed error, and nobody waits for it for ever."""

from __future__ import annotations

import os
import signal

import pytest

from playhead import LLM, SamplingParams
from playhead.errors import RankLost

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


def test_a_rank_that_is_killed_ends_the_engine_with_a_typed_error():
    says = lose(LLM("embedded", tensor_parallel_size=2, **SIZES), lambda process: process.kill())
    assert says.startswith("rank 1 of 2 was killed by SIGKILL")


def test_a_rank_that_is_stopped_ends_the_engine_with_a_typed_error():
    says = lose(LLM("embedded", tensor_parallel_size=2, **SIZES), lambda process: os.kill(process.pid, signal.SIGSTOP))
    assert says.startswith("rank 1 of 2 has been silent for")
