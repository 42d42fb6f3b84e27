"""How the host waits for a step on a GPU, with events that need none."""

from __future__ import annotations

import numpy as np
import torch

from playhead.step.cuda_readback import CudaStopwatches
from playhead.step.sampling import without_reports


class ScriptedEvent:
    """Done when it was asked three times, or waited for. Notes what was called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def query(self) -> bool:
        self.calls.append("query")
        return "synchronize" in self.calls or len(self.calls) > 2

    def synchronize(self) -> None:
        self.calls.append("synchronize")

    def elapsed_time(self, later: ScriptedEvent) -> float:
        return 1.5


class ScriptedTiming:
    def __init__(self) -> None:
        self.event = ScriptedEvent()


class ScriptedLane:
    """A lane whose token is its number."""

    def __init__(self, number: int) -> None:
        self.started, self.done = ScriptedTiming(), ScriptedTiming()
        self.read_N = np.array([number, 99])

    def start(self) -> None:
        return

    def end(self, tokens_N: torch.Tensor) -> None:
        return


def test_the_newest_step_is_waited_for_and_an_older_one_is_asked():
    watches = CudaStopwatches(torch.device("cpu"), max_rows=2)
    watches.free += [ScriptedLane(number) for number in (8, 7)]
    results = without_reports(torch.zeros(1, dtype=torch.int64))
    older, newer = (watches.start().read_back(results) for _ in range(2))
    lanes = {lane.read_N[0]: lane for lane in (older._lane, newer._lane)}
    assert (older.wait().tokens, newer.wait().tokens) == ([7], [8])
    assert lanes[7].done.event.calls == ["query"] * 3
    assert lanes[8].done.event.calls == ["synchronize", "query"]
    assert (older.device_us(), newer.device_us()) == (1500, 1500)
    assert watches.free == [lanes[7], lanes[8]]
