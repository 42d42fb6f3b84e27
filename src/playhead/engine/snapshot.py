"""What an engine has done and holds at one moment, as plain data that can go to another process. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from playhead.engine.timeline import EngineStats, StepRecord

if TYPE_CHECKING:
    from playhead.engine.engine import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupUse:
    """One KV group: how many pages there are and who has them. `window` is None for full attention.

    `page_states` has a byte per page, in the order of the pool: 0 free, 1 held by a running request, 2 cached for
    later prompts, 3 given up and still in flight, 4 quarantined.
    """

    name: str
    window: int | None
    page_size: int
    bytes_per_page: int
    num_pages: int
    num_free: int
    num_held: int
    num_cached: int
    page_states: bytes = b""


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
class EngineSnapshot:
    """Counters since the start, queues and memory now, and the last steps."""

    stats: EngineStats
    num_running: int
    num_waiting: int
    max_running: int
    groups: tuple[GroupUse, ...] = ()
    graphs: tuple[GraphUse, ...] = ()
    prefix_refusals: Mapping[str, int] = field(default_factory=dict)
    """Prefix hits that had to be shortened, by reason."""
    steps: tuple[StepRecord, ...] = ()


def take_snapshot(engine: Engine, after_step: int = 0) -> EngineSnapshot:
    """What an engine has done and holds now. Called between two steps, in the engine's own thread."""
    num_running, num_waiting = engine.num_requests
    return EngineSnapshot(
        stats=engine.stats.copy(),
        num_running=num_running,
        num_waiting=num_waiting,
        max_running=engine.worker.config.limits.max_running,
        steps=tuple(record for record in engine.timeline if record.number > after_step),
    )
