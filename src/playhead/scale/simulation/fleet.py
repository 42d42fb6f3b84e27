"""Many replicas on virtual time, behind a router, under a policy for their number. No torch.

Arrivals are taken in order. Between two arrivals a heap says which replica changes next, so the loads that a router
sees are those of the moment. Only the replica that an event is about is advanced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple, Protocol

from playhead.scale.autoscale import Autoscaler
from playhead.scale.router import Loads, PageKey, Router
from playhead.scale.simulation.replica import NEVER, SimReplica
from playhead.scale.simulation.request import ReplicaSpec, SimRequest


class Placement(Protocol):
    """Who says where a request goes. `changed` tells it that a replica's load did."""

    def begin(self, replicas: Sequence[str]) -> None: ...
    def choose(self, keys: Sequence[PageKey], loads: Loads) -> str: ...
    def add(self, replica: str) -> None: ...
    def forget(self, replica: str) -> None: ...
    def changed(self, replica: str, num_sequences: int) -> None: ...


class PrefixAware:
    """The router that serves. It is made with all replicas at once: it sorts its ring whenever one is added."""

    def __init__(self, make: Callable[[Iterable[str]], Router] = Router) -> None:
        self._make, self.router = make, make(())

    def begin(self, replicas: Sequence[str]) -> None:
        self.router = self._make(replicas)

    def choose(self, keys: Sequence[PageKey], loads: Loads) -> str:
        replica = self.router.choose(keys, loads).replica
        self.router.observe(keys, replica)
        return replica

    def add(self, replica: str) -> None:
        self.router.add(replica)

    def forget(self, replica: str) -> None:
        self.router.forget(replica)

    def changed(self, replica: str, num_sequences: int) -> None:
        """The router looks at loads when it chooses."""


class RoundRobin:
    """Each replica in turn."""

    def __init__(self) -> None:
        self._replicas: list[str] = []
        self._turn = 0

    def begin(self, replicas: Sequence[str]) -> None:
        self._replicas = [*replicas]

    def choose(self, keys: Sequence[PageKey], loads: Loads) -> str:
        self._turn += 1
        return self._replicas[self._turn % len(self._replicas)]

    def add(self, replica: str) -> None:
        self._replicas.append(replica)

    def forget(self, replica: str) -> None:
        self._replicas.remove(replica)

    def changed(self, replica: str, num_sequences: int) -> None:
        """Loads do not matter."""


class LeastLoaded:
    """The replica with the fewest requests; of several, the one whose load changed first."""

    def __init__(self) -> None:
        self._replicas: dict[str, int] = {}
        self._heap: list[tuple[int, int, str]] = []  # outdated entries are dropped when they come up
        self._count = 0

    def begin(self, replicas: Sequence[str]) -> None:
        for replica in replicas:
            self.add(replica)

    def choose(self, keys: Sequence[PageKey], loads: Loads) -> str:
        while self._replicas.get(self._heap[0][2]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][2]

    def add(self, replica: str) -> None:
        self.changed(replica, 0)

    def forget(self, replica: str) -> None:
        del self._replicas[replica]

    def changed(self, replica: str, num_sequences: int) -> None:
        self._replicas[replica] = num_sequences
        self._count += 1
        heappush(self._heap, (num_sequences, self._count, replica))


def ignore(request: SimRequest) -> None:
    """Whoever plays requests may keep them and look at them himself."""


class Arrival(NamedTuple):
    """A request, and the page keys that a router sees of its prompt."""

    request: SimRequest
    keys: Sequence[PageKey]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """A policy looks at the fleet every `every_s`; a replica serves `start_s` after it was asked for."""

    scaler: Autoscaler
    every_s: float = 1.0
    start_s: float = 30.0


@dataclass(slots=True, kw_only=True)  # mutable: it is filled while the fleet runs
class FleetLog:
    """What happened beside the requests: (seconds, replicas that are paid for, requests under way) at every look."""

    looks: list[tuple[float, int, int]] = field(default_factory=list)
    replica_seconds: float = 0.0


class Fleet:
    """Replicas by name. Names are never used twice."""

    def __init__(
        self,
        spec: ReplicaSpec,
        num_replicas: int,
        placement: Placement,
        on_end: Callable[[SimRequest], None] | None = None,
    ) -> None:
        self._spec, self._placement, self._on_end = spec, placement, on_end or ignore
        self.loads = Loads()
        self.replicas: dict[str, SimReplica] = {}
        self.log = FleetLog()
        self.now_s = 0.0
        self.num_ended = 0
        self._ended: list[SimRequest] = []
        self._events: list[tuple[float, int, str, int]] = []  # (seconds, tie, replica, sequences that end; 0: advance)
        self._due: dict[str, float] = {}
        self._num_events = self._num_named = 0
        self._starting: list[tuple[float, str]] = []
        self._born_s: dict[str, float] = {}
        self._draining: set[str] = set()
        self.gone: list[SimReplica] = []
        names = [self._name() for _ in range(num_replicas)]
        for name in names:
            self._start(name)
        placement.begin(names)

    # Requests.

    def play(self, arrivals: Iterable[Arrival], scaling: Scaling | None = None) -> None:
        """Take these requests, in the order of their arrival, and run until all of them have ended."""
        next_look_s = 0.0 if scaling is not None else NEVER
        for request, keys in arrivals:
            while next_look_s <= request.arrival_s:
                assert scaling is not None, "without a policy there is nothing to look at"
                self._run_to(next_look_s)
                self._look(scaling)
                next_look_s += scaling.every_s
            self._run_to(request.arrival_s)
            self._send(request, keys)
        self._run_to(NEVER)
        for name in self.replicas:
            self._pay(name)

    def _send(self, request: SimRequest, keys: Sequence[PageKey]) -> None:
        name = self._placement.choose(keys, self.loads)
        replica = self.replicas[name]
        replica.advance(request.arrival_s)
        replica.submit(request)
        self._count(name, 1)
        self._settle(name, request.arrival_s)

    def _run_to(self, until_s: float) -> None:
        """Everything that happens up to this moment."""
        events = self._events
        while events and events[0][0] <= until_s:
            at_s, _, name, num_ended = heappop(events)
            self.now_s = max(self.now_s, at_s)
            if num_ended:
                self._ends(name, num_ended)
            elif self._due.get(name) == at_s:  # otherwise something came in between, and another event is due
                self.replicas[name].advance(at_s)
                self._settle(name, at_s)
        if until_s < NEVER:
            self.now_s = until_s

    def _settle(self, name: str, now_s: float) -> None:
        """Say when the replica must be looked at next, and count what ended, now or when it does."""
        due_s = self.replicas[name].next_end_s()
        self._due[name] = due_s
        if due_s < NEVER:
            self._push(due_s, name, 0)
        if self._ended:
            end_s, num_ended = self._ended[-1].end_s, 0
            for request in self._ended:
                self._on_end(request)
                if request.end_s > now_s:
                    num_ended += 1  # all of these end with the step that runs now
            if num_ended < len(self._ended):
                self._ends(name, len(self._ended) - num_ended)
            if num_ended:
                self._push(end_s, name, num_ended)
            self._ended.clear()

    def _ends(self, name: str, num_ended: int) -> None:
        self._count(name, -num_ended)
        self.num_ended += num_ended
        if name in self._draining and not self.loads[name]:
            self._stop(name)

    def _push(self, at_s: float, name: str, num_ended: int) -> None:
        self._num_events += 1
        heappush(self._events, (at_s, self._num_events, name, num_ended))

    def _count(self, name: str, num_sequences: int) -> None:
        self.loads.add(name, num_sequences)
        if name not in self._draining:
            self._placement.changed(name, self.loads[name])

    # Replicas.

    def _name(self) -> str:
        self._num_named += 1
        return f"r{self._num_named}"

    def _start(self, name: str) -> None:
        self.replicas[name] = SimReplica(self._spec, self._ended.append)
        self.loads.add(name, 0)
        self._born_s.setdefault(name, self.now_s)

    def _stop(self, name: str) -> None:
        """A replica that has nothing left to do, and gets nothing any more, goes."""
        self._draining.discard(name)
        self._pay(name)
        self.gone.append(self.replicas.pop(name))
        self.loads.remove(name)
        self._due.pop(name, None)

    def _pay(self, name: str) -> None:
        self.log.replica_seconds += self.now_s - self._born_s.pop(name)

    def _look(self, scaling: Scaling) -> None:
        """Let replicas begin that have started, and ask the policy for the number there should be."""
        while self._starting and self._starting[0][0] <= self.now_s:
            name = heappop(self._starting)[1]
            self._start(name)
            self._placement.add(name)
        num_serving = len(self.replicas) - len(self._draining)
        num_replicas = num_serving + len(self._starting)
        self.log.looks.append((self.now_s, len(self.replicas) + len(self._starting), self.loads.total))
        wanted = scaling.scaler.wanted(self.now_s, num_sequences=self.loads.total, num_replicas=num_replicas)
        for _ in range(wanted - num_replicas):
            name = self._name()
            self._born_s[name] = self.now_s  # a replica costs from its start on
            heappush(self._starting, (self.now_s + scaling.start_s, name))
        if wanted < num_replicas:
            self._drain(num_replicas - wanted)

    def _drain(self, count: int) -> None:
        """Those with the least to do take no more requests, and go when they have none."""
        serving = [name for name in self.replicas if name not in self._draining]
        least = sorted(serving, key=lambda name: self.loads[name])[: min(count, len(serving) - 1)]
        for name in least:
            self._placement.forget(name)
            self._draining.add(name)
            if not self.loads[name]:
                self._stop(name)
