"""One real engine in a process of its own, as `bench.calibrate` runs two of them: requests in, moments and steps out.

Moments are of the machine's monotonic clock, which all processes share.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

from playhead.engine.engine import Engine
from playhead.engine.front import RequestOptions
from playhead.inputs import TokensPrompt
from playhead.llm import LLM
from playhead.sampling_params import SamplingParams
from playhead.scale.cost import ModelShape, StepWork, shape_of

POLL_S = 0.5
MAX_WAITING = 1 << 20  # a slow moment of the machine must lose no request: the simulated replicas lose none


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a replica says of itself when it is ready."""

    shape: ModelShape
    kv_bytes: int
    max_running: int
    chunk_tokens: int
    max_context_tokens: int
    page_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request: exactly so many tokens, greedy."""

    index: int
    prompt: tuple[int, ...]
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """When a request's first and last token came, and how much of its prompt was cached."""

    index: int
    first_s: float
    end_s: float
    num_cached: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedStep:
    """What a step did, and the seconds until the next one could begin: with the requests that were taken in."""

    work: StepWork
    padded_tokens: int
    seconds: float


class Replica:
    """An engine, a pipe, and the clock of its steps."""

    def __init__(self, engine: Engine, pipe: Connection, shape: ModelShape) -> None:
        self._engine, self._pipe, self._shape = engine, pipe, shape
        self._steps: list[TimedStep] = []

    def serve(self) -> None:
        """Take requests and run steps until the other side hangs up. "steps" asks for the steps since the last time."""
        began_s = time.perf_counter()
        while True:
            while self._pipe.poll(0 if self._engine.has_work else POLL_S):
                if not self._engine.has_work:
                    began_s = time.perf_counter()
                try:
                    message = self._pipe.recv()
                except EOFError:
                    return
                if isinstance(message, Ask):
                    self._submit(message)
                else:
                    self._pipe.send(self._steps)
                    self._steps = []
            if self._engine.has_work:
                self._step(began_s)
                began_s = time.perf_counter()

    def _submit(self, ask: Ask) -> None:
        params = SamplingParams(temperature=0, max_tokens=ask.output_tokens, ignore_eos=True)
        prompt = TokensPrompt(prompt_token_ids=list(ask.prompt))
        self._engine.add_request(str(ask.index), prompt, params, RequestOptions(streams=False))

    def _step(self, began_s: float) -> None:
        """One step, what it did by the engine's own counters, and the answers that it finished."""
        engine, shape = self._engine, self._shape
        num_prompt, num_before = engine.stats.num_prompt_tokens, {one: len(one.output) for one in engine.running}
        outputs = engine.step()
        for output in outputs:
            metrics = output.metrics
            assert output.finished, "no request streams"
            assert metrics.first_token_s is not None, "every request has a token"
            assert metrics.finished_s is not None, "and has ended"
            self._pipe.send(
                Answer(
                    index=int(output.request_id),
                    first_s=metrics.first_token_s,
                    end_s=metrics.finished_s,
                    num_cached=output.num_cached_tokens or 0,
                )
            )
        (record,) = engine.timeline.newest(1)
        num_tokens = engine.stats.num_prompt_tokens - num_prompt
        decoding = [one for one, count in num_before.items() if count]
        kv_bytes = sum(shape.live_bytes(len(one.prompt) + len(one.output)) for one in decoding)
        work = StepWork(
            num_rows=record.raw - num_tokens,
            kv_bytes=kv_bytes,
            num_prompt_tokens=num_tokens,
            prompt_flops=num_tokens * shape.layer_flops,
        )
        seconds = time.perf_counter() - began_s
        self._steps.append(TimedStep(work=work, padded_tokens=record.padded, seconds=seconds))


def run_replica(pipe: Connection) -> None:
    """The process: an engine with all graphs captured, its facts, then requests."""
    with LLM("embedded") as llm:
        llm.capture_graphs()
        engine = llm.engine
        engine.max_waiting = MAX_WAITING
        plan = engine.worker.kv.plan
        weights = sum(one.numel() * one.element_size() for one in engine.worker.model.decoder.parameters())
        shape = shape_of(engine.worker.model.decoder.spec, plan.geometry, weights)
        pipe.send(
            Facts(
                shape=shape,
                kv_bytes=plan.arena_bytes,
                max_running=plan.limits.max_running,
                chunk_tokens=plan.limits.chunk_tokens,
                max_context_tokens=plan.limits.max_context_tokens,
                page_size=plan.geometry.page_size,
            )
        )
        Replica(engine, pipe, shape).serve()
