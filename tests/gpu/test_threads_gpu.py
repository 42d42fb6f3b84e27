"""Threads that take turns on a GPU: each has a current device and a current stream of its own."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from playhead import LLM, EngineConfig, SamplingParams
from playhead.testing.threads import Beside

PARAMS = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
PROMPTS = [[[5 + 40 * t + i, 6, 7, 8] for i in range(6)] for t in range(4)]


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("own_streams", [False, True])
def test_threads_get_the_tokens_they_get_alone(own_streams, overlap):
    # Little KV: in tests every step recounts all pages.
    config = EngineConfig(
        device="cuda", dtype="float32", max_model_len=96, max_num_seqs=8, kv_memory_bytes=1 << 24, overlap=overlap
    )
    with LLM("embedded", config) as llm:

        def generate(prompts) -> list[list[int]]:
            stream = torch.cuda.stream(torch.cuda.Stream()) if own_streams else nullcontext()
            with stream:
                return [output.outputs[0].token_ids for output in llm.generate(prompts, PARAMS)]

        alone = [generate(prompts) for prompts in PROMPTS]
        threads = [Beside(lambda prompts=prompts: generate(prompts)) for prompts in PROMPTS]
        for thread in threads:
            thread.start()
        assert [thread.result() for thread in threads] == alone
