"""A scheduler without a model: requests of mixed lengths with shared prefixes, follow-up turns, aborts and preemption.

Two steps are in flight. Decoding requests come first, then prompts, in chunks, within one budget of tokens per step.
When pages run out the youngest request is preempted and waits to be computed again.
"""

from __future__ import annotations

import random
import time
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from playhead.errors import OutOfPages
from playhead.kv.cache import HybridKVCache
from playhead.kv.ledger import Ledger
from playhead.kv.plan import KVPlan
from playhead.kv.sequence import SequenceKV
from playhead.types import Step

NUM_SYSTEM_PROMPTS = 40
SHARE_OF_SYSTEM_PROMPTS, SHARE_OF_FOLLOW_UPS, SHARE_OF_ABORTS = 0.4, 0.25, 0.03
MAX_FOLLOW_UP_TOKENS = 3000
HEADROOM = 0.03
"""Share of the memory that admission leaves to running requests to grow into; too little shows as preemptions."""


@dataclass(slots=True, kw_only=True, eq=False)
class TraceRequest:
    """A request of the trace; mutable, it grows and may be preempted."""

    name: str
    tokens: list[int]
    num_output_left: int
    is_aborted: bool
    seq: SequenceKV | None = None


@dataclass(slots=True, kw_only=True)
class TraceResult:
    """What the run showed; filled while it runs."""

    num_finished: int = 0
    num_aborted: int = 0
    num_decoded_tokens: int = 0
    step_us: list[float] = field(default_factory=list)
    held_share: list[float] = field(default_factory=list)
    cached_share: list[float] = field(default_factory=list)
    ideal_share: list[float] = field(default_factory=list)
    hit_rate: list[float] = field(default_factory=list)


class TraceRun:
    """Runs a trace through a cache, step by step."""

    def __init__(self, plan: KVPlan, *, num_requests: int, seed: int = 0) -> None:
        self.cache = HybridKVCache(plan)
        self.result = TraceResult()
        self._plan = plan
        self._ledger = Ledger(self.cache)
        self._rng = random.Random(seed)
        self._numbers = np.random.default_rng(seed)
        self._systems = [self._random_tokens(self._rng.randrange(200, 1500)) for _ in range(NUM_SYSTEM_PROMPTS)]
        self._ended: deque[list[int]] = deque(maxlen=200)
        self._waiting: deque[TraceRequest] = deque()
        self._running: list[TraceRequest] = []
        self._num_unborn = num_requests
        self._in_flight = Step(0)

    def run(self) -> TraceResult:
        num_steps = 0
        while self._num_unborn or self._waiting or self._running:
            while self._num_unborn and len(self._waiting) < 64:
                self._waiting.append(self._new_request())
            started = time.perf_counter()
            self._step()
            self.result.step_us.append((time.perf_counter() - started) * 1e6)
            num_steps += 1
            if num_steps % 200 == 0:
                self._sample()
        assert not self._ledger.check(), "the account balances after every step"
        return self.result

    # The trace.

    def _random_tokens(self, count: int) -> list[int]:
        return list(self._numbers.integers(0, 2**18, size=count).tolist())

    def _new_request(self) -> TraceRequest:
        self._num_unborn -= 1
        kind = self._rng.random()
        tokens: list[int] = []
        if kind < SHARE_OF_SYSTEM_PROMPTS:
            tokens = list(self._rng.choice(self._systems))
        elif kind < SHARE_OF_SYSTEM_PROMPTS + SHARE_OF_FOLLOW_UPS and self._ended:
            tokens = list(self._rng.choice(self._ended))
        tokens += self._random_tokens(min(2000, 16 + int(self._rng.expovariate(1 / 250))))
        return TraceRequest(
            name=f"r{self._num_unborn}",
            tokens=tokens,
            num_output_left=8 + int(self._rng.expovariate(1 / 90)),
            is_aborted=self._rng.random() < SHARE_OF_ABORTS,
        )

    # The scheduler.

    def _step(self) -> None:
        budget = self._plan.limits.chunk_tokens
        for request in list(self._running):
            if request.seq is not None and budget and self._needs_decode(request):
                budget -= self._decode(request)
        for request in list(self._running):
            if request.seq is not None and budget and not self._needs_decode(request):
                budget -= self._prefill(request, budget)
        while budget and self._waiting and self.cache.rows.num_free and self._has_room(self._waiting[0]):
            request = self._waiting.popleft()
            request.seq = self.cache.admit(request.name, request.tokens)
            self._running.append(request)
            num_placed = self._prefill(request, budget)
            if not self._running or self._running[-1] is not request:
                break  # it was preempted at once: what it needs is still in use by the running step
            budget -= num_placed
        self.cache.allocator.mapping.take_unpublished()
        before, self._in_flight = self._in_flight, self.cache.launch()
        self.cache.retire(before)
        self._end_done()

    def _needs_decode(self, request: TraceRequest) -> bool:
        assert request.seq is not None, "only running requests are asked"
        return request.seq.num_tokens >= len(request.tokens) - 1

    def _has_room(self, request: TraceRequest) -> bool:
        num_pages = 2 + len(request.tokens) // self._plan.geometry.page_size
        stride = sum(group.page_stride_bytes for group in self._plan.layout.groups)
        headroom = HEADROOM * self._plan.arena_bytes
        return self.cache.allocator.num_available_bytes() > num_pages * stride + headroom

    def _decode(self, request: TraceRequest) -> int:
        if not self._extend(request, 1):
            return 0
        request.tokens.append(self._rng.randrange(2**18))
        request.num_output_left -= 1
        self.result.num_decoded_tokens += 1
        return 1

    def _prefill(self, request: TraceRequest, budget: int) -> int:
        assert request.seq is not None, "only running requests are computed"
        num_tokens = min(budget, len(request.tokens) - 1 - request.seq.num_tokens)
        return num_tokens if num_tokens > 0 and self._extend(request, num_tokens) else 0

    def _extend(self, request: TraceRequest, num_tokens: int) -> bool:
        """Places for tokens, if need be at the youngest request's expense."""
        while request.seq is not None:
            try:
                self.cache.extend(request.seq, num_tokens)
            except OutOfPages:
                self._preempt_youngest()
            else:
                return True
        return False

    def _preempt_youngest(self) -> None:
        youngest = self._running.pop()
        assert youngest.seq is not None, "only running requests are preempted"
        self.cache.preempt(youngest.seq, youngest.tokens)
        youngest.seq = None
        self._waiting.appendleft(youngest)

    def _end_done(self) -> None:
        still = []
        for request in self._running:
            assert request.seq is not None, "only running requests end"
            is_full = len(request.tokens) >= self._plan.limits.max_context_tokens
            if request.is_aborted and request.num_output_left < 5:
                self.cache.abort(request.seq)
                self.result.num_aborted += 1
            elif request.num_output_left <= 0 or is_full:
                self.cache.finish(request.seq, request.tokens)
                self.result.num_finished += 1
                if len(request.tokens) < MAX_FOLLOW_UP_TOKENS:
                    self._ended.append(request.tokens)
            else:
                still.append(request)
        self._running = still

    def _sample(self) -> None:
        allocator, plan, result = self.cache.allocator, self._plan, self.result
        strides = [group.page_stride_bytes for group in plan.layout.groups]
        result.held_share.append(_dot(allocator.num_held, strides) / plan.arena_bytes)
        result.cached_share.append(_dot(allocator.num_cached, strides) / plan.arena_bytes)
        lengths = [seq.num_tokens for seq in self.cache.sequences.values()]
        result.ideal_share.append(sum(map(plan.geometry.bytes_per_request, lengths)) / plan.arena_bytes)
        result.hit_rate.append(self.cache.prefix.stats.hit_rate)


def _dot(counts: list[int], sizes: list[int]) -> int:
    return sum(count * size for count, size in zip(counts, sizes, strict=True))
