"""What raises for one request ends that request, with its cause; its neighbours' tokens are exact."""

from __future__ import annotations

import asyncio

import pytest

from playhead.engine.async_engine import AsyncEngine
from playhead.engine.response import ResponseBuilder
from playhead.errors import RequestFailed
from playhead.llm import LLM
from playhead.models.text.detokenize import IncrementalDetokenizer
from playhead.outputs import FinishReason
from playhead.sampling_params import SamplingParams
from playhead.step.sampling import SamplerRows
from playhead.testing.fault_runs import leftovers

PROMPTS = ["The whale", "Call me", "My fellow citizens,"]
BROKEN = 1
PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop=("never said",))


@pytest.fixture(scope="module")
def llm():
    with LLM("embedded", max_model_len=96, max_num_seqs=4, kv_memory_bytes=1 << 23, graph_mode="eager") as made:
        yield made


@pytest.fixture(scope="module")
def wanted(llm):
    return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, PARAMS)]


def broken_for_one(original, is_the_one, *, after: int = 0):
    """The method, raising from its `after`-th call on for the object that it is about."""
    num_calls = 0

    def method(self, *args, **kwargs):
        nonlocal num_calls
        if is_the_one(self, *args):
            num_calls += 1
            if num_calls > after:
                raise ValueError("this one's text cannot be made")
        return original(self, *args, **kwargs)

    return method


def is_broken(answer: ResponseBuilder, *args: object) -> bool:
    return answer.prompt == PROMPTS[BROKEN]


def break_text(monkeypatch, method: str) -> None:
    monkeypatch.setattr(
        ResponseBuilder,
        method,
        broken_for_one(ResponseBuilder.__dict__[method], is_broken, after=2 * (method == "take")),
    )


def break_detokenizer(monkeypatch, method: str) -> None:
    """The second of the detokenizers that are made from now on."""
    seen: list[IncrementalDetokenizer] = []

    def is_second(detokenizer: IncrementalDetokenizer, *args: object) -> bool:
        if all(detokenizer is not known for known in seen):
            seen.append(detokenizer)
        return len(seen) > BROKEN and detokenizer is seen[BROKEN]

    original = IncrementalDetokenizer.__dict__[method]
    monkeypatch.setattr(IncrementalDetokenizer, method, broken_for_one(original, is_second))


def break_sampler(monkeypatch, method: str) -> None:
    """The second request that the sampler hears of from now on."""
    seen: list[object] = []

    def is_second(sampler: SamplerRows, *args: object) -> bool:
        seen.append(args)
        return len(seen) == 1 + BROKEN

    monkeypatch.setattr(SamplerRows, method, broken_for_one(SamplerRows.__dict__[method], is_second))


BREAKS = {
    "detokenizer feed": lambda patch: break_detokenizer(patch, "feed"),
    "detokenizer finish": lambda patch: break_detokenizer(patch, "finish"),
    "stop strings": lambda patch: break_text(patch, "take"),
    "output": lambda patch: break_text(patch, "output"),
    "sampler prepare": lambda patch: break_sampler(patch, "prepare"),
    "sampler row": lambda patch: break_sampler(patch, "set"),
}


@pytest.mark.parametrize("part", list(BREAKS))
def test_an_exception_of_one_request_ends_that_request_alone(llm, wanted, monkeypatch, part):
    with monkeypatch.context() as patch:
        BREAKS[part](patch)
        outputs = llm.generate(PROMPTS, PARAMS)
    failed = outputs.pop(BROKEN)
    assert isinstance(failed.error, RequestFailed)
    assert isinstance(failed.error.__cause__, ValueError)
    assert failed.finished
    assert failed.outputs[0].finish_reason is FinishReason.ERROR
    assert failed.outputs[0].token_ids == wanted[BROKEN][: len(failed.outputs[0].token_ids)]
    assert [output.outputs[0].token_ids for output in outputs] == [wanted[0], wanted[2]]
    assert all(output.error is None for output in outputs)
    assert leftovers(llm.engine) == []
    assert llm.generate(PROMPTS[BROKEN], PARAMS)[0].outputs[0].token_ids == wanted[BROKEN]


@pytest.mark.parametrize("part", list(BREAKS))
def test_an_exception_of_one_request_reaches_its_own_consumer_alone(llm, wanted, monkeypatch, part):
    async def last_of(engine: AsyncEngine, prompt: str):
        last = None
        async for output in engine.generate(prompt, PARAMS):
            last = output
        return last

    async def ask_all():
        async with AsyncEngine.of(llm.engine) as engine:
            with monkeypatch.context() as patch:
                BREAKS[part](patch)
                asked = [last_of(engine, prompt) for prompt in PROMPTS]
                outputs = await asyncio.gather(*asked, return_exceptions=True)
            return outputs, await last_of(engine, PROMPTS[BROKEN])

    outputs, again = asyncio.run(ask_all())
    failed = outputs.pop(BROKEN)
    assert isinstance(failed, RequestFailed)
    assert isinstance(failed.__cause__, ValueError)
    assert [output.outputs[0].token_ids for output in outputs] == [wanted[0], wanted[2]]
    assert again.outputs[0].token_ids == wanted[BROKEN]
    assert leftovers(llm.engine) == []


def test_a_stream_raises_its_error_with_the_cause(llm, monkeypatch):
    stream = llm.stream(PROMPTS[BROKEN], PARAMS)
    next(stream)
    with monkeypatch.context() as patch:
        break_text(patch, "output")
        with pytest.raises(RequestFailed) as raised:
            list(stream)
    assert isinstance(raised.value.__cause__, ValueError)
    assert llm.stats.num_failed_requests > 0
    assert not llm.is_busy


def test_one_bad_sample_ends_all_samples_of_its_request(llm, wanted, monkeypatch):
    async def ask():
        async with AsyncEngine.of(llm.engine) as engine:
            with monkeypatch.context() as patch:
                break_detokenizer(patch, "feed")
                two = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, n=2)
                with pytest.raises(RequestFailed):
                    async for _ in engine.generate(PROMPTS[0], two):
                        pass

    asyncio.run(ask())
    assert leftovers(llm.engine) == []
