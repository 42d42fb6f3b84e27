"""How the host waits for a step on a GPU, with events that need none."""

from __future__ import annotations

import numpy as np
import torch

from playhead.step.cuda_readback import CudaStopwatches
from playhead.step.outbox import Outbox
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

    def end(self, tokens_N: torch.Tensor | None) -> None:
        self.copied = tokens_N


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


def test_tokens_in_a_box_are_not_copied_and_are_read_when_the_step_has_ended():
    watches, outbox = CudaStopwatches(torch.device("cpu"), max_rows=2), Outbox(2, torch.device("cpu"))
    watches.free.append(ScriptedLane(7))
    read = watches.start().read_back(without_reports(torch.zeros(1, dtype=torch.int64)), outbox.box(3, 1))
    assert read._lane.copied is None
    outbox.boxes_XR[3] = torch.tensor([5, 6])
    assert read.wait().tokens == [5]
    outbox.boxes_XR.zero_()  # a later step's
    assert read.wait().tokens == [5]
