"""Random windows, page sizes, chunks and memory, from the least that a plan takes: every token is what it is alone.

Windows are shorter and longer than a page, and than the context; chunks are shorter than a page; prompts and answers
end on the borders of pages. Requests have forms with forced tokens, priorities and logprobs; some are given up, and
some continue an answer whose pages may be gone by then.
`PLAYHEAD_FUZZ_GEOMETRIES` is how many geometries are tried.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch

from playhead.engine.config import EngineConfig
from playhead.engine.engine import Engine
from playhead.kv.plan import KVLimits, least_bytes, most_running
from playhead.models.build import spec_from_config
from playhead.models.text.ids_only import IdsOnlyTokenizer
from playhead.outputs import RequestOutput
from playhead.sampling_params import SamplingParams
from playhead.step.forward import kv_geometry
from playhead.testing.fault_runs import leftovers
from playhead.testing.kv_pools import NaNOnReclaim
from playhead.testing.structured import END, checked_ask, formed
from playhead.testing.tiny_engine import Ask, run_asks
from playhead.testing.tiny_worker import TINY_GEMMA3, tiny_worker
from playhead.types import Mode

NUM_GEOMETRIES = int(os.environ.get("PLAYHEAD_FUZZ_GEOMETRIES", "8"))
NUM_REQUESTS = 12
REGEXES = (r"k-x:q,z\.[0-9]{3}w-v:[a-z0-9]{8}", r"[0-9]{3}-[0-9]{4}", r"q,z\.k-x:w([0-9],){2}w-v:k-x:[ab]")


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """One geometry: the window of its window layers, its pages, its context and its steps."""

    window: int
    has_full_layer: bool
    page_size: int
    limits: KVLimits
    spare: float
    """Memory beyond the least, as a part of it."""

    @classmethod
    def drawn(cls, rng: random.Random) -> Sizes:
        page_size, context = rng.choice([1, 2, 3, 5, 8, 16]), rng.choice([16, 17, 32, 48])
        limits = KVLimits(
            max_context_tokens=context,
            max_running=rng.randint(2, 5),
            chunk_tokens=rng.choice([1, 3, 8, 64]),
            num_steps_in_flight=rng.choice([1, 2, 2]),
        )
        return cls(
            window=rng.choice([1, 3, page_size, page_size + 1, 2 * page_size, context, 2 * context]),
            has_full_layer=rng.random() < 0.8,
            page_size=page_size,
            limits=limits,
            spare=rng.choice([0, 0, 0.2, 1.0]),
        )

    @property
    def model(self) -> dict[str, object]:
        last = "full_attention" if self.has_full_layer else "sliding_attention"
        types = ["sliding_attention", "sliding_attention", last]
        return {**TINY_GEMMA3, "sliding_window": self.window, "layer_types": types}

    def engine(self) -> Engine:
        """In the memory of these sizes; pages are NaN as soon as they are free."""
        geometry = kv_geometry(spec_from_config(self.model), page_size=self.page_size, dtype=torch.float32)
        num_bytes = int(least_bytes(geometry, self.limits) * (1 + self.spare))
        most = most_running(num_bytes, geometry, self.limits)
        limits = replace(self.limits, max_running=min(self.limits.max_running, most))
        worker = tiny_worker(model=self.model, page_size=self.page_size, limits=limits, kv_memory_bytes=num_bytes)
        NaNOnReclaim(worker.kv, worker.pool)
        return Engine(worker, IdsOnlyTokenizer(), config=EngineConfig())

    def lone_engine(self) -> Engine:
        """In plenty of memory, without prefixes, graphs, overlap or chunks."""
        context = self.limits.max_context_tokens
        limits = KVLimits(max_context_tokens=context, max_running=1, chunk_tokens=context)
        worker = tiny_worker(Mode.EAGER, model=self.model, limits=limits, prefix_caching=False)
        return Engine(worker, IdsOnlyTokenizer(), config=EngineConfig(forced_tokens=False))


def drawn_params(rng: random.Random, number: int, num_tokens: int) -> SamplingParams:
    if rng.random() < 0.4:
        return formed(num_tokens, seed=rng.choice([None, number]), regex=rng.choice(REGEXES))
    params = SamplingParams(temperature=rng.choice([0, 1]), seed=number, max_tokens=num_tokens, ignore_eos=True)
    rare: Sequence[dict[str, object]] = (
        {"prompt_logprobs": 1},
        {"logprobs": 1},
        {"stop_token_ids": list(range(END, 64, 9))},
        {"frequency_penalty": 1.1},
    )
    return replace(params, **rng.choice(rare)) if rng.random() < 0.5 else params  # type: ignore[arg-type]


def drawn_ask(rng: random.Random, number: int, sizes: Sizes, known: Sequence[tuple[int, ...]]) -> Ask:
    """A request, most of them behind the beginning of a known text; many end where a page does."""
    context, page_size = sizes.limits.max_context_tokens, sizes.page_size
    own = tuple(rng.randrange(64) for _ in range(rng.choice([1, page_size, rng.randint(1, context - 2)])))
    start = rng.choice(known) if known and rng.random() < 0.6 else ()
    prompt = (*start[: rng.choice([len(start), len(start) // page_size * page_size, page_size])], *own)[: context - 2]
    room = context - len(prompt)
    num_tokens = min(room, rng.choice([1, -len(prompt) % page_size + 1, rng.randint(1, room), room]))
    return Ask(
        name=f"r{number}",
        prompt=prompt,
        params=drawn_params(rng, number, num_tokens),
        comes=rng.randint(0, 2 * number),
        goes=rng.randint(0, 60) if rng.random() < 0.15 else None,
        priority=rng.choice([0, 0, 1, -1]),
    )


def drawn_asks(rng: random.Random, sizes: Sizes) -> tuple[list[Ask], dict[str, RequestOutput]]:
    """Requests, and what each gets alone. Some are the next turn of a conversation."""
    lone, asks, alone = sizes.lone_engine(), list[Ask](), dict[str, RequestOutput]()
    known: list[tuple[int, ...]] = []
    for number in range(NUM_REQUESTS):
        ask = drawn_ask(rng, number, sizes, known)
        finished, _ = run_asks(lone, [replace(ask, comes=0, goes=None)], check=checked_ask)
        asks.append(ask)
        alone |= finished
        known += [ask.prompt, (*ask.prompt, *finished[ask.name].outputs[0].token_ids)]
    return asks, alone


def reported(output: RequestOutput) -> list[float]:
    """The logprobs of the prompt's tokens and of the answer's, where they were asked for."""
    tables = [*(output.prompt_logprobs or ()), *(output.outputs[0].logprobs or ())]
    return [one.logprob for table in tables if table for one in table.values()]


@pytest.mark.parametrize("seed", range(NUM_GEOMETRIES))
def test_every_geometry_gives_the_tokens_of_each_request_alone(seed):
    rng = random.Random(seed)
    sizes = Sizes.drawn(rng)
    asks, alone = drawn_asks(rng, sizes)
    engine = sizes.engine()
    finished, found = run_asks(engine, asks, check=checked_ask)
    assert found == []
    assert {ask.name for ask in asks if ask.goes is None} <= finished.keys()
    for name, output in finished.items():
        assert output.outputs[0].token_ids == alone[name].outputs[0].token_ids, (name, sizes)
        assert reported(output) == pytest.approx(reported(alone[name]), abs=1e-3)
    assert leftovers(engine) == []
    engine.reset_prefix_cache()
    assert not any(group.num_taken for group in engine.worker.kv.allocator.groups)
