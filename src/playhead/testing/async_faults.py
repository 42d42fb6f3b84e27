"""One fault in an engine that serves an event loop: who waits is told, and the engine serves the next exactly."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence

from playhead.engine.async_engine import AsyncEngine
from playhead.errors import PlayheadError, RequestFailed, StepFailed
from playhead.llm import LLM
from playhead.outputs import RequestOutput
from playhead.sampling_params import SamplingParams
from playhead.testing.fault_runs import FaultPicker, leftovers
from playhead.testing.faults import injected

PATIENCE_S = 60.0  # only broken code takes as long


def run_async_fault(
    llm: LLM, prompts: Sequence[str], params: SamplingParams, wanted: Mapping[str, list[int]], picker: FaultPicker
) -> list[str]:
    """All prompts at once with one fault armed, then each again; what must not be.

    A consumer gets its exact tokens, or `StepFailed` or `RequestFailed` with its cause. Asked again, all are exact.
    """
    site, error, at = picker.pick()
    threads = set(threading.enumerate())
    with injected(site, error, at, in_threads=True) as injection:
        found = asyncio.run(_ask_twice(llm, prompts, params, wanted))
    picker.learn(site, injection)
    found += leftovers(llm.engine)
    if llm.is_busy or llm.engine.has_work:
        found.append("the engine still has work")
    left = set(threading.enumerate()) - threads
    found += [f"thread {thread.name!r} is left" for thread in left if thread.name.startswith("playhead")]
    return [f"after {error.__name__} at {injection.raised_at}: {line}" for line in found]


async def _ask_twice(
    llm: LLM, prompts: Sequence[str], params: SamplingParams, wanted: Mapping[str, list[int]]
) -> list[str]:
    found: list[str] = []
    async with AsyncEngine.of(llm.engine) as engine:
        for is_again in (False, True):
            asked = (_last(engine, prompt, params) for prompt in prompts)
            try:
                async with asyncio.timeout(PATIENCE_S):
                    responses = await asyncio.gather(*asked)
            except TimeoutError:
                return [*found, "somebody waits for ever"]
            for prompt, response in zip(prompts, responses, strict=True):
                found += [f"{prompt!r}: {line}" for line in _wrong(response, wanted[prompt], is_again=is_again)]
        if engine._serving.tickets:
            found.append(f"tickets left: {sorted(engine._serving.tickets)}")
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    return found + [f"task left: {task!r}" for task in tasks]


async def _last(engine: AsyncEngine, prompt: str, params: SamplingParams) -> RequestOutput | PlayheadError:
    output: RequestOutput | None = None
    try:
        async for newest in engine.generate(prompt, params):
            output = newest
    except PlayheadError as error:
        return error
    assert output is not None, "a stream that ends has a last output"
    return output


def _wrong(response: RequestOutput | PlayheadError, wanted: list[int], *, is_again: bool) -> list[str]:
    if isinstance(response, RequestOutput):
        tokens = response.outputs[0].token_ids
        return [] if tokens == wanted else [f"{tokens}; alone {wanted}"]
    if is_again:
        return [f"{response!r} although the fault is over"]
    is_typed = isinstance(response, StepFailed | RequestFailed) and response.__cause__ is not None
    return [] if is_typed else [f"{response!r} without its cause"]
