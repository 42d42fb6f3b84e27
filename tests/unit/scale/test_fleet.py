"""A simulated fleet: every request ends once, and a router sees the loads of the moment."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

import pytest

from bench import simulate, simulate_plots
from playhead.errors import ConfigError
from playhead.scale.autoscale import Autoscaler, ScaleLimits
from playhead.scale.router import Loads, PageKey
from playhead.scale.simulation.fleet import Fleet, LeastLoaded, Placement, PrefixAware, RoundRobin, Scaling
from playhead.scale.simulation.replica import SimReplica
from playhead.scale.simulation.request import SimRequest
from playhead.scale.simulation.traffic import TrafficSpec, arrivals
from tests.unit.scale.scheduled import spec_of, toy_plan

SPEC = spec_of(toy_plan())
TRAFFIC = TrafficSpec(
    rate=2000,
    num_requests=600,
    prompt_tokens=60,
    output_tokens=20,
    prefix_tokens=32,
    num_prefixes=12,
    max_tokens=100,
    page_size=4,
    router_page_tokens=16,
)
PLACEMENTS = (PrefixAware, RoundRobin, LeastLoaded)


class Watched:
    """A placement, where each request went, and the loads that it saw."""

    def __init__(self, inner: Placement) -> None:
        self.inner, self.chosen = inner, list[str]()
        self.seen: list[dict[str, int]] = []
        self._names: list[str] = []

    def begin(self, replicas: Sequence[str]) -> None:
        self._names = [*replicas]
        self.inner.begin(replicas)

    def choose(self, keys: Sequence[PageKey], loads: Loads) -> str:
        self.seen.append({name: loads[name] for name in self._names})
        self.chosen.append(self.inner.choose(keys, loads))
        return self.chosen[-1]

    def add(self, replica: str) -> None:
        self._names.append(replica)
        self.inner.add(replica)

    def forget(self, replica: str) -> None:
        self._names.remove(replica)
        self.inner.forget(replica)

    def changed(self, replica: str, num_sequences: int) -> None:
        self.inner.changed(replica, num_sequences)


def played(placement: Placement, traffic: TrafficSpec = TRAFFIC, **settings: Scaling) -> tuple[Fleet, list[SimRequest]]:
    """The requests in the order of their arrival, after a fleet of four has answered them."""
    ended: list[SimRequest] = []
    fleet = Fleet(SPEC, 4, placement, ended.append)
    fleet.play(arrivals(traffic), **settings)
    assert Counter(one.index for one in ended) == Counter(range(traffic.num_requests)), "each ends, and once"
    assert fleet.num_ended == traffic.num_requests
    assert fleet.loads.total == 0
    return fleet, sorted(ended, key=lambda one: one.index)


@pytest.mark.parametrize("kind", PLACEMENTS)
def test_a_router_sees_the_loads_of_the_moment(kind):
    """The requests that were sent to a replica and have not ended, not one step earlier and not one later."""
    watched = Watched(kind())
    _, requests = played(watched)
    for i, seen in enumerate(watched.seen):
        under_way = Counter(watched.chosen[j] for j in range(i) if requests[j].end_s > requests[i].arrival_s)
        assert {name: count for name, count in seen.items() if count} == dict(under_way)


@pytest.mark.parametrize("kind", PLACEMENTS)
def test_a_fleet_is_its_replicas_each_for_itself(kind):
    watched = Watched(kind())
    _, requests = played(watched)
    mine = defaultdict(list)
    for request, (fresh, _), name in zip(requests, arrivals(TRAFFIC), watched.chosen, strict=True):
        mine[name].append((request, fresh))
    for pairs in mine.values():
        replica = SimReplica(SPEC, lambda one: None)
        for _, fresh in pairs:
            replica.advance(fresh.arrival_s)
            replica.submit(fresh)
        replica.advance(math.inf)
        assert [one.first_s for one, _ in pairs] == pytest.approx([one.first_s for _, one in pairs], rel=1e-9)
        assert [one.end_s for one, _ in pairs] == pytest.approx([one.end_s for _, one in pairs], rel=1e-9)


def test_the_prefix_router_computes_fewer_prompt_tokens():
    cached = {}
    for kind in PLACEMENTS:
        cached[kind] = sum(one.num_cached for one in played(kind())[1])
    assert cached[PrefixAware] > 1.1 * max(cached[RoundRobin], cached[LeastLoaded])


def test_the_least_loaded_is_the_least_loaded():
    watched = Watched(LeastLoaded())
    played(watched)
    assert all(seen[name] == min(seen.values()) for seen, name in zip(watched.seen, watched.chosen, strict=True))


def scaled(limits: ScaleLimits, traffic: TrafficSpec) -> Fleet:
    scaling = Scaling(scaler=Autoscaler(limits), every_s=0.01, start_s=0.05)
    return played(PrefixAware(), traffic, scaling=scaling)[0]


def test_a_fleet_grows_and_shrinks_and_loses_nothing():
    limits = ScaleLimits(min_replicas=2, max_replicas=12, target_load=4, up_after_s=0.02, down_after_s=0.05)
    fleet = scaled(limits, replace(TRAFFIC, rate=1500, swing=0.9, period_s=0.3, num_requests=1500))
    numbers = [count for _, count, _ in fleet.log.looks]
    assert max(numbers) > 6
    assert fleet.gone, "some went again"
    assert all(not one.num_requests for one in fleet.gone)
    assert fleet.log.replica_seconds < 12 * fleet.now_s


def test_a_fleet_that_stays_is_paid_for_from_begin_to_end():
    fleet, _ = played(RoundRobin())
    assert fleet.log.replica_seconds == pytest.approx(4 * fleet.now_s)


def test_traffic_has_its_rate_its_lengths_and_its_popular_prefixes():
    traffic = replace(TRAFFIC, num_requests=20_000, rate=100)
    requests = [one.request for one in arrivals(traffic)]
    assert requests[-1].arrival_s == pytest.approx(200, rel=0.05)
    assert sum(one.output_tokens for one in requests) / 20_000 == pytest.approx(20, rel=0.05)
    popular = Counter(one.path for one in requests).most_common()
    assert popular[0][1] == pytest.approx(2 * popular[1][1], rel=0.15)
    assert all(one.ends == (32,) for one in requests)


def test_traffic_swings_by_what_was_asked_for():
    traffic = replace(TRAFFIC, num_requests=40_000, rate=100, swing=0.5, period_s=100)
    times = [one.request.arrival_s for one in arrivals(traffic)]
    assert times == sorted(times)
    high, low = (sum(at - 5 <= time % 100 < at + 5 for time in times) for at in (25, 75))
    assert high / low == pytest.approx(3.0, rel=0.1)


def test_equal_prefixes_have_equal_keys_and_nothing_else_has():
    seen: dict[PageKey, set[object]] = defaultdict(set)
    for request, keys in arrivals(replace(TRAFFIC, num_requests=300)):
        assert len(keys) == request.prompt_tokens // 16
        for i, key in enumerate(keys):
            seen[key].add(request.path if i < 2 else request.index)
    assert all(len(owners) == 1 for owners in seen.values())


def test_traffic_that_is_all_prefix_is_refused():
    with pytest.raises(ConfigError, match="at least one token of its own"):
        replace(TRAFFIC, prefix_tokens=60)
    with pytest.raises(ConfigError, match="swing"):
        replace(TRAFFIC, swing=1.0)


def test_the_command_reports_every_run(capsys, monkeypatch, tmp_path):
    given = ["x", "--replicas", "4", "--requests", "300", "--router", "prefix,least-loaded", "--json"]
    monkeypatch.setattr("sys.argv", [*given, str(tmp_path / "runs.jsonl")])
    simulate.main()
    rows = capsys.readouterr().out.splitlines()[-2:]
    assert [row.split()[1] for row in rows] == ["prefix", "least-loaded"]
    assert len((tmp_path / "runs.jsonl").read_text().splitlines()) == 2


def test_a_plot_has_a_line_for_each_router():
    pytest.importorskip("matplotlib")
    args = simulate.options(["--replicas", "2", "--requests", "60"])
    spec = simulate.replica_spec(args)
    runs = [
        simulate.play(simulate.scenario_of(args, spec, router, rate)) for router in simulate.ROUTERS for rate in (1, 2)
    ]
    figure = simulate_plots.draw_sweep(runs)
    assert [line.get_label() for line in figure.axes[0].get_lines()] == list(simulate.ROUTERS)
    assert [axis.get_title() for axis in figure.axes][2] == "prompt tokens cached, %"
