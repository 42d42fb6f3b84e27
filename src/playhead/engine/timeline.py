"""What an engine has done: counters since its start, and the last few thousand steps one by one. No torch.

`Timeline` writes those steps as a trace that Perfetto and Chrome open.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path

MAX_STEPS = 4096  # an hour of steps of a second, or ten seconds of the fastest; older ones are forgotten


@dataclass(slots=True, kw_only=True)  # mutable: counters
class EngineStats:
    """What the engine has done since it started. `modes` counts steps by how and why they ran.

    A wasted row is one that was computed for a request which turned out to have ended. `num_failed_requests` ended with
    an error of their own. `num_violations` is what the ledger found wrong in the account of KV pages: each is a bug.
    """

    num_steps: int = 0
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_wasted_rows: int = 0
    num_failed_requests: int = 0
    num_violations: int = 0
    modes: dict[str, int] = field(default_factory=dict)

    def count_step(self, mode: str, num_preemptions: int) -> None:
        """One more step, which ran so; and how often requests have lost their memory by now."""
        self.num_steps += 1
        self.num_preemptions = num_preemptions
        self.modes[mode] = self.modes.get(mode, 0) + 1

    def copy(self) -> EngineStats:
        """The counters as they are now."""
        return replace(self, modes=dict(self.modes))

    def since(self, before: EngineStats) -> EngineStats:
        """What was counted after an earlier copy."""
        then = asdict(before)
        counts = {name: count - then[name] for name, count in asdict(self).items() if name != "modes"}
        modes = {mode: count - before.modes.get(mode, 0) for mode, count in self.modes.items()}
        return EngineStats(**counts, modes={mode: count for mode, count in modes.items() if count})


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step: how it ran and why, how large it was, and where the time went, in microseconds.

    `raw` and `padded` count tokens, which in a decode step are requests. The host plans and launches from `started_us`
    on, and reads the tokens from `read_us` on, which may be after the next step's launch. `device_us` is the device's
    own time. `pages` are those in use by group, after it.
    """

    number: int
    mode: str
    reason: str
    raw: int
    padded: int
    num_requests: int
    started_us: float
    plan_us: float
    launch_us: float
    read_us: float
    wait_us: float
    commit_us: float
    device_us: float
    pages: Mapping[str, int]

    @property
    def phases(self) -> Iterator[tuple[str, float, float]]:
        """(name, start, duration) of each part of the host's work."""
        yield "plan", self.started_us, self.plan_us
        yield "launch", self.started_us + self.plan_us, self.launch_us
        yield "wait", self.read_us, self.wait_us
        yield "commit", self.read_us + self.wait_us, self.commit_us


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

    def newest(self, count: int) -> tuple[StepRecord, ...]:
        """The last steps, at most so many, oldest first."""
        return tuple(islice(reversed(self._steps), count))[::-1]

    def chrome_trace(self) -> str:
        """Trace events as JSON: the host's parts of each step, the device's time with the step's facts, and the pages.

        A device's bar ends where the host had the tokens; its length is the device's own.
        """
        events: list[dict[str, object]] = []
        for step in self._steps:
            facts = {key: value for key, value in asdict(step).items() if not key.endswith("_us")}
            name = f"{step.mode} {step.raw}/{step.padded}"
            done_us = step.read_us + step.wait_us
            events.append(bar(name, done_us - step.device_us, step.device_us, lane=1) | {"args": facts})
            events += [bar(part, start, duration, lane=2) for part, start, duration in step.phases]
            events.append({"name": "pages", "ph": "C", "ts": step.started_us, "pid": 1, "args": dict(step.pages)})
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})

    def write(self, path: Path) -> None:
        path.write_text(self.chrome_trace(), encoding="utf-8")


def bar(name: str, start_us: float, duration_us: float, *, lane: int) -> dict[str, object]:
    """A complete event of the trace format."""
    return {"name": name, "ph": "X", "ts": start_us, "dur": duration_us, "pid": 1, "tid": lane}
