"""An engine over the tiny worker, and one schedule that has everything: for checkers that need the whole path.

The schedule: requests that arrive while others run, greedy and drawn, with penalties and stop tokens, shared prefixes,
one that is given up half-way, in so little memory that some are preempted.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from playhead.engine.config import EngineConfig
from playhead.engine.engine import Engine
from playhead.engine.front import CheckedPrompt, RequestOptions
from playhead.kv.ledger import Ledger
from playhead.kv.plan import KVLimits
from playhead.llm import LLM
from playhead.models.text.ids_only import IdsOnlyTokenizer
from playhead.outputs import RequestOutput
from playhead.sampling_params import SamplingParams
from playhead.testing.tiny_worker import tiny_worker

LIMITS = KVLimits(max_context_tokens=32, max_running=3, chunk_tokens=8)
PAGE_SIZE = 2
LITTLE_BYTES = 10_240
MAX_STEPS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request of the schedule: it comes at a step, and may be given up at another.

    `bad_words` are token ids, because there is no tokenizer to make them of words.
    """

    name: str
    prompt: tuple[int, ...]
    params: SamplingParams
    comes: int = 0
    goes: int | None = None
    priority: int = 0
    bad_words: tuple[tuple[int, ...], ...] = ()


def greedy(num_tokens: int, **more: object) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, **more)  # type: ignore[arg-type]


def drawn(num_tokens: int, seed: int, **more: object) -> SamplingParams:
    return SamplingParams(max_tokens=num_tokens, seed=seed, ignore_eos=True, **more)  # type: ignore[arg-type]


SCHEDULE: tuple[Ask, ...] = (
    Ask(name="first", prompt=(7, 8, 9, 10, 11), params=greedy(3)),
    # Alone in the row of "first", by the same graph. When it decodes it is as long as "first" would be by now.
    Ask(name="same row", prompt=(3, 4, 5, 6, 7, 8, 9), params=greedy(6), comes=7),
    Ask(name="long", prompt=tuple(range(20, 34)), params=drawn(14, seed=2, top_k=8), comes=14),
    Ask(name="prefix", prompt=(*range(20, 32), 1), params=greedy(12), comes=15),
    Ask(name="late", prompt=(40, 41, 42), params=greedy(20, repetition_penalty=1.3), comes=16),
    Ask(name="given up", prompt=(50, 51), params=drawn(20, seed=3), comes=17, goes=24),
    Ask(name="stopped", prompt=(5, 6), params=drawn(20, seed=4, stop_token_ids=tuple(range(0, 64, 5))), comes=20),
    Ask(name="urgent", prompt=tuple(range(10, 25)), params=drawn(10, seed=5, min_p=0.01), comes=24, priority=-1),
    Ask(name="last", prompt=(60, 61, 62), params=drawn(9, seed=6), comes=26),
)


# One row after the other is used again, beside a request whose step looks at every row's tables.
LEFTOVERS: tuple[Ask, ...] = (
    Ask(name="penalised", prompt=(3, 4, 5, 6, 7, 8, 3), params=greedy(24, frequency_penalty=2.0)),
    Ask(name="biased", prompt=(5, 6), params=greedy(4, logit_bias={9: 100.0})),
    Ask(name="plain", prompt=(5, 6, 7), params=greedy(6), comes=6),
    Ask(name="no end yet", prompt=(8, 9), params=drawn(6, seed=2, min_tokens=6, stop_token_ids=[1, 2, 3]), comes=12),
    Ask(name="plain too", prompt=(8, 9, 10), params=greedy(4), comes=19),
    # Its row's tokens were counted, though nobody had asked for it.
    Ask(name="penalised too", prompt=(8, 9, 10), params=greedy(6, frequency_penalty=2.0), comes=25),
)
ONE_BY_ONE = KVLimits(max_context_tokens=32, max_running=3, chunk_tokens=1)
"""Prompts come in chunks of a token, as decode does."""


def crowd(seed: int, count: int = 24) -> tuple[Ask, ...]:
    """Many requests of all priorities, with shared beginnings: in little memory they take it from each other."""
    rng = random.Random(seed)
    asks = []
    for i in range(count):
        start = rng.choice([0, 20, 40])
        prompt = (*range(start, start + rng.randint(1, 10)), rng.randrange(64))
        num_tokens = rng.randint(2, 16)
        params = greedy(num_tokens) if rng.random() < 0.3 else drawn(num_tokens, seed=i)
        asks.append(Ask(name=f"r{i}", prompt=prompt, params=params, comes=2 * i, priority=rng.randint(-2, 2)))
    return tuple(asks)


def tiny_engine(
    *,
    overlap: bool,
    kv_memory_bytes: int = 1 << 20,
    prefix_caching: bool = True,
    limits: KVLimits = LIMITS,
    strict_ledger: bool = True,
    seed: int | None = None,
) -> Engine:
    """With `overlap` two steps are in flight at a time."""
    limits = replace(limits, num_steps_in_flight=2 if overlap else 1)
    worker = tiny_worker(
        page_size=PAGE_SIZE,
        limits=limits,
        kv_memory_bytes=kv_memory_bytes,
        prefix_caching=prefix_caching,
        strict_ledger=strict_ledger,
    )
    return Engine(worker, IdsOnlyTokenizer(), config=EngineConfig(seed=seed))


def small_llm() -> LLM:
    """The embedded model in little memory, without graphs."""
    return LLM("embedded", max_model_len=96, max_num_seqs=2, kv_memory_bytes=1 << 23, graph_mode="eager")


def run_schedule(engine: Engine, asks: Sequence[Ask] = SCHEDULE) -> tuple[dict[str, list[int]], list[str]]:
    """Tokens of the requests that were not given up; and what the ledger found after any step."""
    finished, found = run_asks(engine, asks)
    return {name: output.outputs[0].token_ids for name, output in finished.items()}, found


def checked_ask(engine: Engine, ask: Ask) -> CheckedPrompt:
    """The request as an engine takes it."""
    return replace(engine.reader.check(ask.prompt, ask.params), bad_words=ask.bad_words)


def run_asks(
    engine: Engine, asks: Sequence[Ask], *, check: Callable[[Engine, Ask], CheckedPrompt] = checked_ask
) -> tuple[dict[str, RequestOutput], list[str]]:
    """The same with whole outputs."""
    finished: dict[str, RequestOutput] = {}
    found: list[str] = []
    pending = sorted(asks, key=lambda ask: ask.comes)
    for number in range(MAX_STEPS):
        while pending and pending[0].comes <= number and engine.can_take:
            ask = pending.pop(0)
            engine.submit(ask.name, check(engine, ask), RequestOptions(priority=ask.priority))
        for ask in asks:
            if ask.goes == number:
                engine.abort(ask.name)
        with suppress(MemoryError):  # a step that fails may be tried again
            for output in engine.step():
                if output.finished:
                    finished[output.request_id] = output
        found += [f"step {number}: {violation}" for violation in Ledger(engine.worker.kv).audit()]
        if not pending and not engine.has_work:
            return finished, found
    return finished, [*found, f"requests are not done after {MAX_STEPS} steps"]


def tokens_alone(asks: Sequence[Ask]) -> dict[str, list[int]]:
    """What each request gets with the engine to itself, no step overlapped and nothing cached."""
    engine = tiny_engine(overlap=False, prefix_caching=False)
    finished: dict[str, list[int]] = {}
    for ask in asks:
        finished |= run_schedule(engine, [replace(ask, comes=0, goes=None, priority=0)])[0]
    return finished
