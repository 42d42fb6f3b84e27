"""What an engine has done and holds at one moment, as plain data that can go to another process. No torch.

`take_snapshot` is for watchers: a page, a scrape of metrics. A snapshot has the same size after an hour as after
a minute, and one of a million pages takes a few milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from playhead.engine.timeline import EngineStats, StepRecord
from playhead.kv.cache import HybridKVCache
from playhead.kv.prefix import Outcome
from playhead.sampling_params import SamplingKind
from playhead.schedule.rows import DeviceRows

if TYPE_CHECKING:  # a process that only reads snapshots has no torch
    from playhead.engine.engine import Engine
    from playhead.graph.runner import GraphRunner

MAX_SQUARES = 4096  # of a map of pages: more than a screen can show
MAX_STEPS_SHOWN = 1024  # half a second of the fastest steps is half as many
MAX_REQUESTS_SHOWN = 64


class PageState(IntEnum):
    """What a page is to its group. Of several pages the largest state is told."""

    ELSEWHERE = 0
    """Its slab is free, or belongs to another group."""
    FREE = 1
    """In a slab of the group, and free."""
    CACHED = 2
    """Kept for later prompts."""
    IN_FLIGHT = 3
    """Given up, while a step that runs may still touch it."""
    HELD = 4
    """A running request counts on it."""
    QUARANTINED = 5
    """Never handed out again, after an error in the account."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupUse:
    """One KV group: its pages and who has them. `window` is None for full attention.

    `num_pages` counts the pages of the slabs that the group has now, which are its free, held, cached, in-flight and
    quarantined ones. Groups share slabs, so it goes up and down. `num_available` pages could be taken now, if no
    other group takes slabs first. A page without bytes belongs to a full group without layers: it is a name.

    `page_states` is the map: a byte per `pages_per_square` pages, in the order of the pool, each a `PageState`.
    """

    name: str
    window: int | None
    page_size: int
    bytes_per_page: int
    num_pages: int
    num_free: int
    num_available: int
    num_held: int
    num_cached: int
    num_in_flight: int
    num_quarantined: int
    pages_per_square: int = 1
    page_states: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestUse:
    """A running request's memory. It has pages for more tokens than it has, because some are reserved ahead.

    `first_pages` has an entry per group, in the order of `EngineSnapshot.groups`: the request's pages before it were
    given up, because their window has passed.
    """

    row: int
    num_tokens: int
    num_cached_tokens: int
    num_pages: int
    first_pages: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphUse:
    """One captured graph: its size, how often it ran, for how many real rows in how many padded ones."""

    runner: str
    bucket: int
    num_replays: int
    num_raw: int
    num_padded: int
    capture_ms: float
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerUse:
    """One runner: the sizes that it captures, now or when they are first wanted, and its steps by reason."""

    name: str
    mode: str
    buckets: tuple[int, ...]
    reasons: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSnapshot:
    """Counters since the start, queues and memory now, and the last steps.

    `num_asked_pages` and `num_hit_pages` count whole pages of prompts: those looked up in the prefix cache, and those
    found there.
    """

    stats: EngineStats
    num_running: int
    num_waiting: int
    max_running: int
    num_slabs: int = 0
    num_free_slabs: int = 0
    slab_bytes: int = 0
    groups: tuple[GroupUse, ...] = ()
    requests: tuple[RequestUse, ...] = ()
    runners: tuple[RunnerUse, ...] = ()
    graphs: tuple[GraphUse, ...] = ()
    num_prefix_lookups: int = 0
    num_asked_pages: int = 0
    num_hit_pages: int = 0
    prefix_refusals: Mapping[str, int] = field(default_factory=dict)
    """Prefix hits that had to be shortened, by reason."""
    steps: tuple[StepRecord, ...] = ()


def take_snapshot(engine: Engine, after_step: int = 0) -> EngineSnapshot:
    """The engine now, with the steps after `after_step`: the newest `MAX_STEPS_SHOWN` of them.

    Call it between two steps, in the thread that runs them.
    """
    worker, kv = engine.worker, engine.worker.kv
    num_running, num_waiting = engine.num_requests
    runners = {"prefill": worker.prefill}
    if worker.whole_prefill is not None:
        runners["prefill with reports"] = worker.whole_prefill
    runners |= {f"decode {SamplingKind(kind).name.lower()}": runner for kind, runner in worker.decoders.items()}
    masked = {} if worker.masked is None else worker.masked.decoders
    runners |= {f"decode {SamplingKind(kind).name.lower()}, masked": runner for kind, runner in masked.items()}
    num_new_steps = max(0, engine.stats.num_steps - after_step)
    looked_up = kv.prefix.stats.num_by_outcome
    return EngineSnapshot(
        stats=engine.stats.copy(),
        num_running=num_running,
        num_waiting=num_waiting,
        max_running=kv.plan.limits.max_running,
        num_slabs=kv.plan.num_slabs,
        num_free_slabs=kv.allocator.arena.num_free,
        slab_bytes=kv.plan.layout.slab_bytes,
        groups=tuple(_group_use(kv, index) for index in range(len(kv.allocator.groups))),
        requests=_request_uses(worker.rows),
        runners=tuple(_runner_use(name, runner) for name, runner in runners.items()),
        graphs=tuple(use for name, runner in runners.items() for use in _graph_uses(name, runner)),
        num_prefix_lookups=looked_up.total(),
        num_asked_pages=kv.prefix.stats.num_asked_pages,
        num_hit_pages=kv.prefix.stats.num_hit_pages,
        prefix_refusals={one.value: looked_up[one] for one in (Outcome.HIT_SHORTENED, Outcome.REFUSED)},
        steps=engine.timeline.newest(min(num_new_steps, MAX_STEPS_SHOWN)),
    )


def _group_use(kv: HybridKVCache, index: int) -> GroupUse:
    allocator, layout = kv.allocator, kv.plan.layout.groups[index]
    group = allocator.groups[index]
    pages_per_square = -(-kv.plan.num_pages(index) // MAX_SQUARES)
    return GroupUse(
        name=group.name,
        window=layout.group.window,
        page_size=kv.plan.geometry.page_size,
        bytes_per_page=layout.page_stride_bytes,
        num_pages=group.num_pages,
        num_free=group.num_free,
        num_available=group.num_available,
        num_held=allocator.num_held[index],
        num_cached=allocator.num_cached[index],
        num_in_flight=allocator.num_pending[index],
        num_quarantined=group.num_quarantined,
        pages_per_square=pages_per_square,
        page_states=_page_states(kv, index, pages_per_square),
    )


def _page_states(kv: HybridKVCache, index: int, pages_per_square: int) -> bytes:
    """The map of a group's pages. The sink, page 0, belongs to no request."""
    allocator = kv.allocator
    group = allocator.groups[index]
    # A page that was handed out, and is neither held nor given up, is kept by the prefix cache.
    states = group.taken_mask().view(np.uint8) * np.uint8(PageState.CACHED)
    states[allocator.holder_counts(index) > 0] = PageState.HELD
    states[list(allocator.pending_pages(index))] = PageState.IN_FLIGHT
    states[list(group.free_pages())] = PageState.FREE
    states[list(group.quarantined_pages())] = PageState.QUARANTINED
    starts = np.arange(0, len(states), pages_per_square)
    return np.maximum.reduceat(states, starts).tobytes()


def _request_uses(rows: DeviceRows) -> tuple[RequestUse, ...]:
    """The requests that have run longest, first."""
    longest = list(rows.sequences.values())[:MAX_REQUESTS_SHOWN]
    return tuple(
        RequestUse(
            row=seq.row,
            num_tokens=seq.num_tokens,
            num_cached_tokens=seq.num_hit_tokens,
            num_pages=len(seq.pages),
            first_pages=(0, *seq.frontiers),
        )
        for seq in longest
    )


def _runner_use(name: str, runner: GraphRunner) -> RunnerUse:
    reasons = {reason.value: count for reason, count in runner.dispatcher.reasons.items()}
    return RunnerUse(name=name, mode=runner.dispatcher.mode.value, buckets=runner.dispatcher.buckets, reasons=reasons)


def _graph_uses(name: str, runner: GraphRunner) -> list[GraphUse]:
    return [
        GraphUse(
            runner=name,
            bucket=bucket,
            num_replays=runner.num_replays[bucket],
            num_raw=runner.num_raw[bucket],
            num_padded=runner.num_replays[bucket] * bucket,
            capture_ms=1e3 * report.seconds,
            num_bytes=report.num_bytes,
        )
        for bucket, report in sorted(runner.reports.items())
    ]
