"""Bytes in, KV memory out: what fits, how close that is to the best possible, and what to change when it does not.

There is no ratio between full and window pages to tune: groups share one arena (`layout.py`) and take slabs as they
need them. The plan fixes the arena, states what fits in it, and refuses what never could.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from playhead.errors import ConfigError
from playhead.kv.geometry import KVGeometry, KVGroup, num_pages_for
from playhead.kv.layout import ArenaLayout, lay_out

MAX_LOCS = 2**31 - 1
"""Locations are int32 on the device."""

NUM_SINK_SLABS = 1

BYTES_PER_NAME = 16
"""A model without full layers has one name, a full location, for so many bytes of KV; the name itself takes four."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLimits:
    """What the scheduler promises: the longest request, how many run at once, how many new tokens a step has at most.

    `num_steps_in_flight` is 2 when a step is launched before the last one is read back: the window pages the first
    let go cannot be reused by the second.
    """

    max_context_tokens: int
    max_running: int
    chunk_tokens: int
    num_steps_in_flight: int = 1

    def __post_init__(self) -> None:
        fields = ("max_context_tokens", "max_running", "chunk_tokens", "num_steps_in_flight")
        values = (self.max_context_tokens, self.max_running, self.chunk_tokens, self.num_steps_in_flight)
        for field, value in zip(fields, values, strict=True):
            if value < 1:
                raise ConfigError(f"kv.{field}: found {value}; wanted at least 1. Set a positive value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What fits when every running request has the same context.

    `num_tokens` counts the whole requests and what one more, shorter request could hold in the rest.
    """

    context_tokens: int
    num_requests: int
    num_tokens: int
    bound_tokens: int
    uniform_tokens: int

    @property
    def one_more_tokens(self) -> int:
        """How long a context one more request could have."""
        return self.num_tokens - self.num_requests * self.context_tokens

    @property
    def fraction_of_bound(self) -> float:
        return self.num_tokens / self.bound_tokens

    @property
    def times_uniform(self) -> float:
        return self.num_tokens / self.uniform_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class KVPlan:
    """One arena and the limits it was planned for."""

    geometry: KVGeometry
    limits: KVLimits
    layout: ArenaLayout
    num_slabs: int

    @property
    def arena_bytes(self) -> int:
        return self.num_slabs * self.layout.slab_bytes

    def num_pages(self, group_index: int) -> int:
        """Page ids of a group, the sink included. A full group without layers still names every token that can live."""
        layout = self.layout.groups[group_index]
        if layout.has_bytes:
            return self.num_slabs * layout.pages_per_slab
        # As many again for retained prefixes: an identity without bytes costs four bytes of mapping per token.
        per_request = num_pages_for(self.limits.max_context_tokens, self.geometry.page_size)
        return 1 + 2 * self.limits.max_running * per_request

    def capacity(self, context_tokens: int) -> Capacity:
        """What fits at this context; see `Capacity`."""
        per_request = [_request_pages(group, context_tokens, self.geometry.page_size) for group in self.geometry.groups]
        num_requests = _largest(lambda n: self._holds([n * pages for pages in per_request], n * context_tokens))
        taken = [num_requests * pages for pages in per_request]
        num_taken = num_requests * context_tokens
        rest = _largest(lambda tokens: tokens < context_tokens and self._holds_beside(taken, num_taken, tokens))
        return Capacity(
            context_tokens=context_tokens,
            num_requests=num_requests,
            num_tokens=num_taken + rest,
            bound_tokens=hybrid_bound_tokens(self.arena_bytes, self.geometry, context_tokens),
            uniform_tokens=self.arena_bytes // self.geometry.bytes_per_token,
        )

    def _holds_beside(self, taken: list[int], num_taken_tokens: int, tokens: int) -> bool:
        page_size = self.geometry.page_size
        extra = [_request_pages(group, tokens, page_size) for group in self.geometry.groups]
        return self._holds([a + b for a, b in zip(taken, extra, strict=True)], num_taken_tokens + tokens)

    def _holds(self, pages: list[int], num_tokens: int) -> bool:
        """Whether these pages per group, of requests with so many tokens, fit beside the sink and chunks in flight."""
        return NUM_SINK_SLABS + sum(self._slabs(pages, num_tokens)) <= self.num_slabs

    @property
    def num_sink_pages(self) -> tuple[int, ...]:
        """Of each group, the pages in the slab that no request gets. Groups share that memory."""
        return tuple(NUM_SINK_SLABS * layout.pages_per_slab for layout in self.layout.groups)

    def _slabs(self, pages: list[int], num_tokens: int) -> list[int]:
        """Slabs of each group for these pages and, in window groups, the chunks in flight.

        A chunk has no more tokens than all requests together: one request of 64 tokens has no chunk of 512.
        """
        chunk_tokens = min(self.limits.chunk_tokens, num_tokens)
        chunks = num_pages_for(self.limits.num_steps_in_flight * chunk_tokens, self.geometry.page_size)
        slabs = []
        for layout, count in zip(self.layout.groups, pages, strict=True):
            in_flight = 0 if layout.group.window is None else chunks
            slabs.append(num_pages_for(count + in_flight, layout.pages_per_slab) if layout.has_bytes else 0)
        return slabs

    def slabs_of(self, num_requests: int, context_tokens: int) -> list[int]:
        """Slabs of each group that so many requests of this context take, chunks in flight included.

        With the sink's and the rest they are `num_slabs`.
        """
        page_size = self.geometry.page_size
        per_request = [_request_pages(group, context_tokens, page_size) for group in self.geometry.groups]
        return self._slabs([num_requests * pages for pages in per_request], num_requests * context_tokens)

    def describe(self) -> str:
        """The plan as text, one line per fact."""
        lines = [f"arena      {self.arena_bytes:,} bytes in {self.num_slabs:,} slabs of {self.layout.slab_bytes:,}"]
        for layout in self.layout.groups:
            lines.append(
                f"{layout.group.name:<10} {len(layout.layers)} layers, {layout.group.bytes_per_token:,} bytes "
                f"per token, {layout.pages_per_slab} pages per slab"
            )
        context = self.limits.max_context_tokens
        at_max = self.capacity(context)
        lines.append(f"context    {context:,} tokens: {at_max.num_requests:,} requests, {at_max.num_tokens:,} tokens")
        lines.append(
            f"bound      {at_max.fraction_of_bound:.1%} of the hybrid bound, {at_max.times_uniform:.2f}x uniform"
        )
        return "\n".join(lines)


def plan_kv(*, num_bytes: int, geometry: KVGeometry, limits: KVLimits) -> KVPlan:
    """The arena for these bytes, or a `ConfigError` that names the value that would fit."""
    plan = _plan_of(geometry, limits, num_bytes)
    least = _least_slabs(plan, limits.max_context_tokens) * plan.layout.slab_bytes
    if num_bytes < least:
        longest = longest_context(num_bytes, geometry, limits)
        advice = f"lower max_context_tokens to {longest}" if longest else "lower chunk_tokens"
        raise ConfigError(
            f"kv.max_context_tokens: found {limits.max_context_tokens}, which needs {least} bytes; "
            f"wanted at most {num_bytes} bytes. Raise kv_memory_bytes to {least} or {advice}"
        )
    most = most_running(num_bytes, geometry, limits)
    if limits.max_running > most:
        raise ConfigError(
            f"kv.max_running: found {limits.max_running}; wanted at most {most}, one page each. "
            f"Lower max_running to {most} or raise kv_memory_bytes"
        )
    for index, group in enumerate(geometry.groups):
        num_locs = plan.num_pages(index) * geometry.page_size
        if num_locs > MAX_LOCS:
            raise ConfigError(
                f"kv group {group.name!r}: found {num_locs} locations; wanted at most {MAX_LOCS}, an int32. "
                f"Lower kv_memory_bytes to {num_bytes * MAX_LOCS // num_locs}"
            )
    return plan


def least_bytes(geometry: KVGeometry, limits: KVLimits) -> int:
    """What one request of the longest context needs, with its chunks in flight and the sink.

    These are the bytes at which `longest_context` gives that context.
    """
    return _bytes_with_names(_plan_of(geometry, limits, num_bytes=0), num_requests=1)


def useful_bytes(geometry: KVGeometry, limits: KVLimits) -> int:
    """What all running requests need if each has the longest context: more would only keep prompts for later."""
    return _bytes_with_names(_plan_of(geometry, limits, num_bytes=0), num_requests=limits.max_running)


def _bytes_with_names(plan: KVPlan, num_requests: int) -> int:
    """Bytes for so many requests of the longest context. Without full layers, the names of all tokens set a minimum:
    16 running requests of 128 tokens need at least 65,536 bytes, however short the window."""
    limits = plan.limits
    num_bytes = _least_slabs(plan, limits.max_context_tokens, num_requests) * plan.layout.slab_bytes
    if plan.layout.groups[0].has_bytes:
        return num_bytes
    return max(num_bytes, BYTES_PER_NAME * 2 * limits.max_running * limits.max_context_tokens)


def longest_context(num_bytes: int, geometry: KVGeometry, limits: KVLimits) -> int:
    """The longest context that these bytes hold for one request; 0 if they hold none."""
    plan = _plan_of(geometry, limits, num_bytes)
    has_full_layers = plan.layout.groups[0].has_bytes
    # Without full layers a request of any length takes the same bytes, but its tokens still need names.
    most_names = num_bytes // BYTES_PER_NAME // (2 * limits.max_running)
    most = MAX_LOCS if has_full_layers else min(MAX_LOCS // (2 * limits.max_running), most_names)
    return _largest(lambda tokens: tokens <= most and _least_slabs(plan, tokens) <= plan.num_slabs)


def most_running(num_bytes: int, geometry: KVGeometry, limits: KVLimits) -> int:
    """How many requests these bytes hold with one page each, beside the chunks in flight."""
    plan, num_groups = _plan_of(geometry, limits, num_bytes), len(geometry.groups)
    return _largest(lambda count: plan._holds([count] * num_groups, count * limits.max_context_tokens))


def most_useful_bytes(geometry: KVGeometry) -> int:
    """The largest arena whose every location has an int32."""
    layout = lay_out(geometry)
    most_pages = MAX_LOCS // geometry.page_size
    return min(most_pages // group.pages_per_slab for group in layout.groups if group.has_bytes) * layout.slab_bytes


def _plan_of(geometry: KVGeometry, limits: KVLimits, num_bytes: int) -> KVPlan:
    layout = lay_out(geometry)
    return KVPlan(geometry=geometry, limits=limits, layout=layout, num_slabs=num_bytes // layout.slab_bytes)


def hybrid_bound_tokens(num_bytes: int, geometry: KVGeometry, context_tokens: int) -> int:
    """Tokens that fit if no byte were lost: window layers keep exactly their window, full layers everything.

    Gemma-3-1B at 8192 tokens: 26 * 8192 / (4 * 8192 + 22 * 512) = 4.84 times uniform paging.
    """
    return num_bytes * context_tokens // geometry.bytes_per_request(context_tokens)


def _request_pages(group: KVGroup, context_tokens: int, page_size: int) -> int:
    """Pages a decoding request holds: in a window group its window and the page the next token goes to."""
    pages = num_pages_for(context_tokens, page_size)
    return pages if group.window is None else min(pages, num_pages_for(group.window, page_size) + 1)


def _least_slabs(plan: KVPlan, context_tokens: int, num_requests: int = 1) -> int:
    """Slabs for so many requests of this length with their chunks in flight, and the sink."""
    return NUM_SINK_SLABS + sum(plan.slabs_of(num_requests, context_tokens))


def _largest(fits: Callable[[int], bool]) -> int:
    """The largest n >= 0 for which `fits` holds, where it holds up to some n and then never; 0 if it never does."""
    high = 1
    while fits(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
