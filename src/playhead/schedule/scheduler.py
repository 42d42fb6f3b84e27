"""Which tokens of which requests run in the next step. Integers in, integers out; no torch.

Running requests that decode go first, then prompts under way, then new ones, while the step has room. Memory is taken
while planning: a request that finds none takes it from the last in order, which computes its tokens again later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from playhead.errors import OutOfPages
from playhead.kv.cache import HybridKVCache
from playhead.schedule.errors import RequestError
from playhead.schedule.request import FinishReason, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleLimits:
    """`chunk_tokens` bounds a step's chunks of prompts; every running request may add one token besides."""

    chunk_tokens: int
    max_waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedChunk:
    """Tokens of one request in a step. `samples` if they are its last known ones, so that the step gives the next."""

    request: Request
    tokens: tuple[int, ...]
    samples: bool


class Scheduler:
    """Continuous batching over one KV cache."""

    def __init__(self, kv: HybridKVCache, limits: ScheduleLimits) -> None:
        self._kv, self._limits = kv, limits
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.num_preemptions = 0

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    @property
    def can_queue(self) -> bool:
        """Whether one more request would be queued rather than refused."""
        return len(self.waiting) < self._limits.max_waiting

    def add(self, request: Request) -> None:
        """Queue a request, or refuse it with the limit."""
        if not self.can_queue:
            raise RequestError(
                f"request {request.id!r}",
                f"{len(self.waiting)} requests waiting",
                f"fewer than {self._limits.max_waiting}",
                "Send it again when some are done.",
            )
        self.waiting.append(request)
        self.waiting.sort(key=lambda waiting: waiting.order)

    def plan(self) -> list[PlannedChunk]:
        """The next step, with memory for all of it. Empty only if there is nothing to do."""
        chunks: dict[str, PlannedChunk] = {}
        room = self._limits.chunk_tokens
        by_turn = sorted(self.running, key=lambda request: (request.num_to_compute > 1, request.order))
        for request in by_turn:
            if request.seq is None:
                continue  # preempted by one before it in this very step
            num_tokens = min(request.num_to_compute, room) if request.num_to_compute > 1 else 1
            if num_tokens and self._make_room(request, num_tokens, chunks):
                chunks[request.id] = self._chunk(request, num_tokens)
                room -= num_tokens if num_tokens > 1 else 0
        self._admit(room, chunks)
        if not chunks and self.waiting and not self.running:
            # Pages that a prefix hit scattered over slabs may keep its own request out: compute it from the start.
            self._kv.flush_prefixes()
            self._admit(room, chunks)
        return list(chunks.values())

    def _admit(self, room: int, chunks: dict[str, PlannedChunk]) -> None:
        """Start waiting requests in their order, as long as the step and the memory have room."""
        while self.waiting and room > 0:
            started = self._start(self.waiting[0], room)
            if started is None:
                return
            chunks[started.request.id] = started
            room -= len(started.tokens)

    def commit(self, request: Request, token: int) -> None:
        """A planned request got its next token."""
        request.output.append(token)

    def roll_back(self, planned: Sequence[PlannedChunk]) -> None:
        """A planned step failed: its requests give up their memory and wait to be computed anew."""
        for chunk in planned:
            if chunk.request.seq is not None:
                self._kv.abort(chunk.request.seq)
                self._requeue(chunk.request)

    def finish(self, request: Request, reason: FinishReason) -> None:
        """The request is done or given up, wherever it is; its memory goes back, its prefix stays for others."""
        request.finish_reason = reason
        if request.seq is None:
            self.waiting.remove(request)
            return
        if reason is FinishReason.ABORT:
            self._kv.abort(request.seq)
        else:
            self._kv.finish(request.seq, request.tokens)
        request.seq = None
        self.running.remove(request)

    def _start(self, request: Request, room: int) -> PlannedChunk | None:
        """Admit the first waiting request with its first chunk, if rows and pages allow it without preempting."""
        tokens = request.tokens
        try:
            request.seq = self._kv.admit(request.id, tokens, salt=request.salt)
        except OutOfPages:
            return None
        num_tokens = min(request.num_to_compute, room)
        try:
            self._kv.extend(request.seq, num_tokens)
        except OutOfPages:
            self._kv.abort(request.seq)
            request.seq = None
            return None
        self.waiting.pop(0)
        self.running.append(request)
        if not request.num_preemptions:
            request.num_cached_tokens = request.seq.num_hit_tokens
        return self._chunk(request, num_tokens)

    def _make_room(self, request: Request, num_tokens: int, chunks: dict[str, PlannedChunk]) -> bool:
        """Places for these tokens, at the expense of later requests; False if the request itself had to go."""
        assert request.seq is not None
        while True:
            try:
                self._kv.extend(request.seq, num_tokens)
            except OutOfPages:
                victim = max(self.running, key=lambda running: running.order)
                chunks.pop(victim.id, None)
                self._preempt(victim)
                if victim is request:
                    return False
            else:
                return True

    def _preempt(self, victim: Request) -> None:
        """Take a request's memory and put it back in line, where its order says."""
        assert victim.seq is not None
        self._kv.preempt(victim.seq, victim.tokens)
        victim.num_preemptions += 1
        self.num_preemptions += 1
        self._requeue(victim)

    def _requeue(self, request: Request) -> None:
        request.seq = None
        self.running.remove(request)
        self.waiting.append(request)
        self.waiting.sort(key=lambda waiting: waiting.order)

    def _chunk(self, request: Request, num_tokens: int) -> PlannedChunk:
        """The chunk whose places were just made."""
        assert request.seq is not None
        end = request.seq.num_tokens
        tokens = request.tokens_between(end - num_tokens, end)
        return PlannedChunk(request=request, tokens=tokens, samples=request.num_to_compute == 0)
