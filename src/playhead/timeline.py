"""What each step did, kept for the last few thousand steps, and as a trace that Perfetto and Chrome open. No torch."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

MAX_STEPS = 4096  # an hour of steps of a second, or ten seconds of the fastest; older ones are forgotten


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step: how it ran and why, how large it was, and where the host's time went, in microseconds.

    `raw` and `padded` count tokens, which in a decode step are requests. `pages` are those in use by group, after it.
    """

    number: int
    mode: str
    reason: str
    raw: int
    padded: int
    num_requests: int
    started_us: float
    plan_us: float
    forward_us: float
    sample_us: float
    commit_us: float
    pages: Mapping[str, int]

    @property
    def phases(self) -> Iterator[tuple[str, float, float]]:
        """(name, start, duration) of each part of the step, one after another."""
        at = self.started_us
        for name, duration in (
            ("plan", self.plan_us),
            ("forward", self.forward_us),
            ("sample", self.sample_us),
            ("commit", self.commit_us),
        ):
            yield name, at, duration
            at += duration


class Timeline:
    """The last steps, oldest first."""

    def __init__(self, max_steps: int = MAX_STEPS) -> None:
        self._steps: deque[StepRecord] = deque(maxlen=max_steps)

    def add(self, record: StepRecord) -> None:
        self._steps.append(record)

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[StepRecord]:
        return iter(self._steps)

    def chrome_trace(self) -> str:
        """Trace events as JSON: a bar per step with its facts, its parts below it, and a counter of pages per group."""
        events: list[dict[str, object]] = []
        for step in self._steps:
            whole = step.plan_us + step.forward_us + step.sample_us + step.commit_us
            facts = {key: value for key, value in asdict(step).items() if not key.endswith("_us")}
            name = f"{step.mode} {step.raw}/{step.padded}"
            events.append(bar(name, step.started_us, whole, lane=1) | {"args": facts})
            events += [bar(part, start, duration, lane=2) for part, start, duration in step.phases]
            events.append({"name": "pages", "ph": "C", "ts": step.started_us, "pid": 1, "args": dict(step.pages)})
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})

    def write(self, path: Path) -> None:
        path.write_text(self.chrome_trace(), encoding="utf-8")


def bar(name: str, start_us: float, duration_us: float, *, lane: int) -> dict[str, object]:
    """A complete event of the trace format."""
    return {"name": name, "ph": "X", "ts": start_us, "dur": duration_us, "pid": 1, "tid": lane}
