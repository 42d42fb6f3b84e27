"""A step that runs, and the record of a step that was read."""

from __future__ import annotations

from dataclasses import dataclass

from playhead.engine.timeline import StepRecord
from playhead.kv.cache import HybridKVCache
from playhead.schedule.step_plan import StepPlan
from playhead.step.worker import Collected, InFlight


@dataclass(slots=True, kw_only=True, eq=False)  # mutable: reading may be interrupted, and goes on where it was
class LaunchedStep:
    """A step that runs, what it is for, and when the host did its part, in seconds."""

    planned: StepPlan
    launched: InFlight
    started_s: float
    planned_s: float
    launched_s: float
    collected: Collected | None = None
    uncommitted: list[int] | None = None
    """Rows whose tokens their requests have not got, the next one last; None before the plain ones got theirs."""

    def record(self, number: int, device_us: float, read: tuple[float, float, float], kv: HybridKVCache) -> StepRecord:
        """For the timeline. `read` has when the host began to wait, had the tokens, and had given them out."""
        decision, (read_s, collected_s, committed_s) = self.launched.decision, read
        return StepRecord(
            number=number,
            mode=decision.mode,
            reason=decision.reason,
            raw=self.planned.num_tokens,
            padded=decision.bucket,
            num_requests=len(self.planned.requests),
            started_us=self.started_s * 1e6,
            plan_us=(self.planned_s - self.started_s) * 1e6,
            launch_us=(self.launched_s - self.planned_s) * 1e6,
            read_us=read_s * 1e6,
            wait_us=(collected_s - read_s) * 1e6,
            commit_us=(committed_s - collected_s) * 1e6,
            device_us=device_us,
            pages={group.name: group.num_taken for group in kv.allocator.groups},
        )
