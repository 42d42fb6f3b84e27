"""The requests that ended last, so that a plan need not be looked through for those that are gone. No torch."""

from __future__ import annotations

from collections import deque
from itertools import islice

from playhead.schedule.request import Request
from playhead.schedule.step_plan import StepPlan

NUM_KEPT = 16  # more seldom end while a step runs


class EndedRequests:
    """The newest ones, each with how many had ended then: one value, so that a change is one call."""

    def __init__(self) -> None:
        self.newest: deque[tuple[int, Request]] = deque(maxlen=NUM_KEPT)

    @property
    def count(self) -> int:
        """Requests that have ended."""
        return self.newest[-1][0] if self.newest else 0

    def add(self, request: Request) -> None:
        """One more has ended."""
        self.newest.append((self.count + 1, request))

    def places_in(self, planned: StepPlan) -> list[int]:
        """The places of the requests that have ended since a step was planned."""
        num_ended = self.count - planned.num_ended_before
        if not num_ended:
            return []
        if num_ended > len(self.newest):
            return planned.ended()
        # Few requests end during a step: they are looked for among the others, not the others looked at.
        requests, newest = planned.requests, islice(reversed(self.newest), num_ended)
        return sorted(requests.index(request) for _, request in newest if request in requests)
