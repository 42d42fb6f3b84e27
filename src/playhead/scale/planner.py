"""How many replicas a load needs, of how many GPUs each, and what to expect of them. No torch.

A replica in a steady state runs steps of T seconds. In that time `rate * T` requests come, so a step has `rate * T *
output` rows and `rate * T * fresh` tokens of prompts, and these rows and tokens take T: the smallest such T is the step
of that rate, and a rate without one is too much. From this follow the replicas; one of them is then simulated with
random arrivals, which says what the first token waits for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from playhead.errors import ConfigError
from playhead.scale.simulation.replica import SimReplica
from playhead.scale.simulation.request import ReplicaSpec, SimRequest
from playhead.scale.simulation.traffic import TrafficSpec, arrivals

ROOM = 0.9
"""Of rows and of memory that a plan uses: arrivals are not even."""
NUM_SIMULATED = 2000
WARM_UP = 0.25  # of the simulated requests, which begin with an empty replica
MOST_STEP_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What comes in, and what is good enough. `prefix_share` of a prompt's tokens are found in the prefix cache."""

    rps: float
    prompt_tokens: int
    output_tokens: int
    prefix_share: float = 0.0
    first_ms: float = 1000.0
    inter_ms: float = 100.0

    @property
    def prefix_tokens(self) -> int:
        return min(int(self.prompt_tokens * self.prefix_share), self.prompt_tokens - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """A replica at a rate: the seconds of a step, its rows, and the KV memory that they take."""

    step_s: float
    num_rows: float
    kv_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlan:
    """Replicas of `num_ranks` GPUs each, and what one of them is expected to do. Milliseconds; tokens of the fleet."""

    num_ranks: int
    num_replicas: int
    rps_per_replica: float
    most_rps_per_replica: float
    num_rows: float
    first_p50_ms: float
    first_p95_ms: float
    inter_ms: float
    output_tokens_per_s: float

    @property
    def num_gpus(self) -> int:
        return self.num_replicas * self.num_ranks


def steady(spec: ReplicaSpec, demand: Demand, rate: float) -> Steady | None:
    """A replica that gets `rate` requests a second for ever; None if it never keeps up."""
    context = demand.prompt_tokens + demand.output_tokens // 2
    fresh = demand.prompt_tokens - demand.prefix_tokens
    flops = spec.flops[demand.prompt_tokens] - spec.flops[demand.prefix_tokens] + spec.cost.shape.head_flops
    step_s = spec.fixed_s[1]
    for _ in range(10_000):
        num_new = rate * step_s
        num_rows = num_new * demand.output_tokens
        if num_rows > spec.max_running or step_s > MOST_STEP_S:
            return None
        # Less than one prompt a step means a prompt in some of the steps.
        tokens, share = max(num_new, 1.0) * fresh, min(1.0, num_new)
        prompts_s = share * spec.cost.prompt_s(math.ceil(tokens), max(num_new, 1.0) * flops)
        kv_bytes = num_rows * spec.live_bytes[context]
        next_s = spec.fixed_s[math.ceil(num_rows)] + spec.kv_s * kv_bytes + prompts_s
        if next_s <= step_s * (1 + 1e-6):
            return Steady(step_s=step_s, num_rows=num_rows, kv_bytes=kv_bytes)
        step_s = next_s
    return None


def keeps_up(spec: ReplicaSpec, demand: Demand, rate: float) -> bool:
    """Whether a replica serves this rate with room to spare, and its tokens come in time."""
    found = steady(spec, demand, rate)
    if found is None:
        return False
    has_room = found.num_rows <= ROOM * spec.max_running and found.kv_bytes <= ROOM * spec.kv_bytes
    return has_room and found.step_s * 1e3 <= demand.inter_ms


def most_rate(spec: ReplicaSpec, demand: Demand) -> float:
    """The highest rate that a replica keeps up with; 0 if its tokens are too slow even alone."""
    low, high = 0.0, 1e-3
    if not keeps_up(spec, demand, high):
        return 0.0
    while keeps_up(spec, demand, high):
        low, high = high, high * 2
    while high - low > 1e-3 * low:
        middle = (low + high) / 2
        low, high = (middle, high) if keeps_up(spec, demand, middle) else (low, middle)
    return low


def simulated(spec: ReplicaSpec, demand: Demand, rate: float) -> list[SimRequest]:
    """Requests of one replica that gets them at random moments, without those that found it cold."""
    traffic = TrafficSpec(
        rate=rate,
        num_requests=NUM_SIMULATED,
        prompt_tokens=demand.prompt_tokens,
        output_tokens=demand.output_tokens,
        prefix_tokens=demand.prefix_tokens,
        sigma=0.0,
        page_size=spec.page_size,
    )
    replica, requests = SimReplica(spec, lambda request: None), list[SimRequest]()
    for request, _ in arrivals(traffic):
        replica.advance(request.arrival_s)
        replica.submit(request)
        requests.append(request)
    replica.advance(math.inf)
    return requests[int(WARM_UP * NUM_SIMULATED) :]


def alone_ms(spec: ReplicaSpec, demand: Demand) -> float:
    """The first token of a request that finds the replica idle and its prefix cached."""
    tokens = demand.prompt_tokens - demand.prefix_tokens
    flops = spec.flops[demand.prompt_tokens] - spec.flops[demand.prefix_tokens] + spec.cost.shape.head_flops
    num_steps = math.ceil(tokens / spec.chunk_tokens)
    return 1e3 * num_steps * (spec.fixed_s[0] + spec.prompt_s(tokens // num_steps, 0, flops / num_steps))


def plan_replicas(spec: ReplicaSpec, demand: Demand) -> FleetPlan | None:
    """The fewest replicas of this kind that serve the demand in time; None if no number of them would.

    With more replicas each has less to do, so first tokens come sooner, down to what one request takes alone.
    """
    most = most_rate(spec, demand)
    if not most or alone_ms(spec, demand) > demand.first_ms:
        return None
    num_replicas = max(1, math.ceil(demand.rps / most))
    while True:
        made = expected(spec, demand, num_replicas, most)
        if made.first_p95_ms <= demand.first_ms:
            return made
        if demand.rps / num_replicas < most / 1000:
            return None  # nearly alone, a request still comes upon another one too often
        num_replicas = math.ceil(num_replicas * 1.1)


def expected(spec: ReplicaSpec, demand: Demand, num_replicas: int, most: float) -> FleetPlan:
    """What so many replicas will do, by playing the requests of one of them."""
    rate = demand.rps / num_replicas
    requests, found = simulated(spec, demand, rate), steady(spec, demand, rate)
    assert found is not None, "the rate is below one that was kept up with"
    first_ms = [1e3 * (one.first_s - one.arrival_s) for one in requests]
    after = max(1, demand.output_tokens - 1)
    return FleetPlan(
        num_ranks=spec.cost.num_ranks,
        num_replicas=num_replicas,
        rps_per_replica=rate,
        most_rps_per_replica=most,
        num_rows=found.num_rows,
        first_p50_ms=float(np.percentile(first_ms, 50)),
        first_p95_ms=float(np.percentile(first_ms, 95)),
        inter_ms=1e3 * float(np.mean([(one.end_s - one.first_s) / after for one in requests])),
        output_tokens_per_s=demand.rps * demand.output_tokens,
    )


def plan_fleet(specs: Mapping[int, ReplicaSpec], demand: Demand) -> FleetPlan:
    """The plan with the fewest GPUs among replicas of several sizes, by ranks; of equal ones the smaller replicas."""
    made = [plan_replicas(spec, demand) for spec in specs.values()]
    found = [one for one in made if one is not None]
    if not found:
        raise ConfigError(
            f"plan: no replica of {', '.join(map(str, specs))} GPUs gives the first token within {demand.first_ms:g} "
            f"ms and the others within {demand.inter_ms:g} ms each. Allow more, or ask for less."
        )
    return min(found, key=lambda one: (one.num_gpus, one.num_ranks))
