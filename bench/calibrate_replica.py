"""Real engines as `bench.calibrate` runs them: in a process each, or two by turns on the clock of the CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch

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


class TimedEngine:
    """An engine whose steps are timed and whose answers have moments, by the clock that it is given."""

    def __init__(self, clock: Callable[[], float]) -> None:
        torch.set_num_threads(1)  # a replica has a core
        llm = LLM("embedded")
        llm.capture_graphs()
        self._engine, self._clock = llm.engine, clock
        self._engine.max_waiting = MAX_WAITING
        plan, decoder = self._engine.worker.kv.plan, self._engine.worker.model.decoder
        weight_bytes = sum(one.numel() * one.element_size() for one in decoder.parameters())
        self.facts = Facts(
            shape=shape_of(decoder.spec, plan.geometry, weight_bytes),
            kv_bytes=plan.arena_bytes,
            max_running=plan.limits.max_running,
            chunk_tokens=plan.limits.chunk_tokens,
            max_context_tokens=plan.limits.max_context_tokens,
            page_size=plan.geometry.page_size,
        )
        self._steps: list[TimedStep] = []
        self._first_s: dict[str, float] = {}
        self._began_s = 0.0

    @property
    def has_work(self) -> bool:
        return self._engine.has_work

    def submit(self, ask: Ask) -> None:
        """Queue a request. The time that this takes belongs to the next step."""
        if not self.has_work:
            self._began_s = self._clock()
        params = SamplingParams(temperature=0, max_tokens=ask.output_tokens, ignore_eos=True)
        prompt = TokensPrompt(prompt_token_ids=list(ask.prompt))
        self._engine.add_request(str(ask.index), prompt, params, RequestOptions(streams=False))

    def step(self) -> list[Answer]:
        """One step; gives the requests that it ended."""
        engine, shape = self._engine, self.facts.shape
        num_prompt, before = engine.stats.num_prompt_tokens, {one.id: len(one.output) for one in engine.running}
        outputs = engine.step()
        now_s = self._clock()
        for name in [one.id for one in engine.running if one.output] + [one.request_id for one in outputs]:
            if not before.get(name):
                self._first_s[name] = now_s
        num_tokens = engine.stats.num_prompt_tokens - num_prompt
        going_on = [one for one in engine.running if before.get(one.id)]
        contexts = [len(one.prompt) + len(one.output) for one in going_on]
        contexts += [len(one.prompt_token_ids) + before.get(one.request_id, 0) for one in outputs]
        (record,) = engine.timeline.newest(1)
        work = StepWork(
            num_rows=record.raw - num_tokens,
            kv_bytes=sum(map(shape.live_bytes, contexts)),
            num_prompt_tokens=num_tokens,
            prompt_flops=num_tokens * shape.layer_flops,
        )
        self._steps.append(TimedStep(work=work, padded_tokens=record.padded, seconds=now_s - self._began_s))
        self._began_s = now_s
        return [
            Answer(
                index=int(one.request_id),
                first_s=self._first_s.pop(one.request_id),
                end_s=now_s,
                num_cached=one.num_cached_tokens,
            )
            for one in outputs
        ]

    def take_steps(self) -> list[TimedStep]:
        """The steps since the last time."""
        steps, self._steps = self._steps, []
        return steps


def run_replica(pipe: Connection) -> None:
    """A process: an engine, its facts, then requests until the other side hangs up. The clock is the machine's."""
    engine = TimedEngine(time.perf_counter)
    pipe.send(engine.facts)
    while True:
        while pipe.poll(0 if engine.has_work else POLL_S):
            try:
                message = pipe.recv()
            except EOFError:
                return
            if isinstance(message, Ask):
                engine.submit(message)
            else:
                pipe.send(engine.take_steps())
        if engine.has_work:
            for answer in engine.step():
                pipe.send(answer)


class CpuClock:
    """A replica's own seconds: those that the CPU works for it, and those that it is idle.

    What else runs on the machine does not count, so two replicas by turns are two replicas at once.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self._since_s: float | None = None

    def __call__(self) -> float:
        return self.now_s if self._since_s is None else self.now_s + time.process_time() - self._since_s

    @contextmanager
    def runs(self) -> Iterator[None]:
        """The CPU works for this replica inside."""
        self._since_s = time.process_time()
        yield
        self.now_s, self._since_s = self(), None
