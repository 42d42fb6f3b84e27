"""How many tokens run at once when memory is full, the prefix cache is on and requests come and go.

All requests have the same context. As many as fit run at once, beside one shorter request that takes what is left, so
that the figure does not depend on how the context divides the memory. A request that ends leaves its pages to the
prefix cache and is replaced by another with a prompt nobody has seen: the cache retains everything and saves nothing,
its worst case.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from playhead.errors import OutOfPages
from playhead.kv.cache import HybridKVCache
from playhead.kv.ledger import Ledger
from playhead.kv.plan import KVPlan, hybrid_bound_tokens
from playhead.kv.sequence import SequenceKV
from playhead.types import Step

NUM_DECODED_TOKENS = 32
NUM_SPARE_SLABS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyState:
    """What ran at once, in tokens, over the decode steps after the first fill."""

    context_tokens: int
    num_requests: int
    mean_tokens: float
    bound_tokens: int
    num_replaced: int
    num_out_of_pages: int
    num_steps: int

    @property
    def fraction_of_bound(self) -> float:
        return self.mean_tokens / self.bound_tokens


@dataclass(slots=True, kw_only=True, eq=False)
class Running:
    """A request of the population; mutable, it decodes."""

    seq: SequenceKV
    prompt: list[int]
    context_tokens: int
    num_left: int


class SteadyRun:
    """A population that fills the memory, decodes, and replaces whoever is done."""

    def __init__(self, plan: KVPlan, *, context_tokens: int, seed: int = 0) -> None:
        self.cache = HybridKVCache(plan)
        self.ledger = Ledger(self.cache)
        self.num_out_of_pages = 0
        self.num_replaced = 0
        self.num_steps = 0
        self._plan = plan
        self._context_tokens = context_tokens
        self._running: list[Running] = []
        self._numbers = np.random.default_rng(seed)
        self._rng = random.Random(seed)
        self._in_flight = Step(0)
        self._num_started = 0

    def measure(self, *, num_decode_steps: int) -> SteadyState:
        capacity = self._plan.capacity(self._context_tokens)
        num_spare_tokens = NUM_SPARE_SLABS * self._plan.layout.slab_bytes // self._plan.geometry.full.bytes_per_token
        rest = capacity.num_tokens - capacity.num_requests * self._context_tokens - num_spare_tokens
        lengths = [self._context_tokens] * capacity.num_requests
        if rest > NUM_DECODED_TOKENS:
            lengths.append(rest)
        for length in lengths:
            self._start(length, num_left=self._rng.randrange(1, NUM_DECODED_TOKENS + 1))
        num_tokens = []
        for _ in range(num_decode_steps):
            self._decode()
            num_tokens.append(sum(running.seq.num_tokens for running in self._running))
            self._replace_done()
        assert not self.ledger.check(), "the account balances after every step"
        return SteadyState(
            context_tokens=self._context_tokens,
            num_requests=len(self._running),
            mean_tokens=sum(num_tokens) / len(num_tokens),
            bound_tokens=hybrid_bound_tokens(self._plan.arena_bytes, self._plan.geometry, self._context_tokens),
            num_replaced=self.num_replaced,
            num_out_of_pages=self.num_out_of_pages,
            num_steps=self.num_steps,
        )

    def _start(self, context_tokens: int, *, num_left: int) -> None:
        """Admit and prefill one request, a chunk per step, nobody decoding meanwhile."""
        prompt = self._numbers.integers(0, 2**18, size=context_tokens - num_left).tolist()
        self._num_started += 1
        seq = self.cache.admit(f"r{self._num_started}", prompt)
        while seq.num_tokens < len(prompt):
            self._extend(seq, min(self._plan.limits.chunk_tokens, len(prompt) - seq.num_tokens))
            self._step()
        self._running.append(Running(seq=seq, prompt=prompt, context_tokens=context_tokens, num_left=num_left))

    def _decode(self) -> None:
        for running in self._running:
            self._extend(running.seq, 1)
            running.num_left -= 1
        self._step()

    def _replace_done(self) -> None:
        done = [running for running in self._running if not running.num_left]
        self._running = [running for running in self._running if running.num_left]
        for running in done:
            num_decoded = running.seq.num_tokens - len(running.prompt)
            self.cache.finish(running.seq, running.prompt + [0] * num_decoded)
            self.num_replaced += 1
            self._start(running.context_tokens, num_left=NUM_DECODED_TOKENS)

    def _extend(self, seq: SequenceKV, num_tokens: int) -> None:
        try:
            self.cache.extend(seq, num_tokens)
        except OutOfPages:
            # What is pending may be enough: let the running step retire, as a scheduler would, and count it.
            self.num_out_of_pages += 1
            self.cache.retire(self._in_flight)
            self.cache.extend(seq, num_tokens)

    def _step(self) -> None:
        """Launch, then retire the step before: two are in flight while the next is planned."""
        self.cache.allocator.mapping.take_unpublished()
        before, self._in_flight = self._in_flight, self.cache.launch()
        self.cache.retire(max(before, self.cache.allocator.retired_step))
        self.num_steps += 1
