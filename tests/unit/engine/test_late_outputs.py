"""With overlap a step gives the tokens of the step before it: loops go by `has_work` and by finished outputs."""

from __future__ import annotations

import asyncio

import pytest

from playhead.cli.workload import WorkloadSpec, random_workload, run_workload
from playhead.engine.async_engine import AsyncEngine
from playhead.llm import LLM
from playhead.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
PROMPTS = [[5, 6], [7, 8, 9], [10]]


@pytest.fixture
def llm():
    with LLM("embedded", max_model_len=64, max_num_seqs=2, graph_mode="eager", overlap=True) as made:
        yield made


@pytest.fixture(scope="module")
def wanted():
    with LLM("embedded", max_model_len=64, max_num_seqs=2, graph_mode="eager", overlap=False) as made:
        return [output.outputs[0].token_ids for output in made.generate(PROMPTS, GREEDY)]


def test_generate_waits_for_them(llm, wanted):
    assert [output.outputs[0].token_ids for output in llm.generate(PROMPTS, GREEDY)] == wanted


def test_a_stream_gives_each_of_them(llm, wanted):
    outputs = list(llm.stream(PROMPTS[0], GREEDY))
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 2, 3, 4, 5, 6]
    assert outputs[-1].outputs[0].token_ids == wanted[0]


def test_an_async_engine_delivers_them(llm, wanted):
    async def last(engine, prompt):
        return [output async for output in engine.generate(prompt, GREEDY)][-1].outputs[0].token_ids

    async def all_of_them():
        async with AsyncEngine.of(llm.engine) as engine:
            return await asyncio.gather(*(last(engine, prompt) for prompt in PROMPTS))

    assert asyncio.run(all_of_them()) == wanted


def test_a_benchmark_counts_them(llm):
    workload = random_workload(WorkloadSpec(num_prompts=3, input_len=4, output_len=5), 4096)
    run = run_workload(llm, workload, lambda output: None)
    assert [len(times) - 1 for times in run.token_times_s] == [5, 5, 5]
