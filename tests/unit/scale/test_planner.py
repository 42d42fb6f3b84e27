"""How many replicas a load needs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from playhead.cli.main import app
from playhead.errors import ConfigError
from playhead.scale.cost import CostModel
from playhead.scale.fit import fit, run_of, shipped_runs
from playhead.scale.planner import Demand, FleetPlan, keeps_up, most_rate, plan_fleet, plan_replicas, simulated, steady
from playhead.scale.simulation.request import ReplicaSpec

RUN = run_of("H200", shipped_runs())
SHAPE = next(one.shape for one in RUN.steps if one.name.startswith("gemma3-4b"))
SPEC = ReplicaSpec(
    cost=CostModel(shape=SHAPE, gpu=RUN.gpu, costs=fit(RUN.gpu, RUN.steps).costs),
    max_running=256,
    chunk_tokens=2048,
    kv_bytes=100 << 30,
    max_context_tokens=2048,
)
DEMAND = Demand(rps=100, prompt_tokens=1024, output_tokens=256)


def planned(demand: Demand) -> FleetPlan:
    made = plan_replicas(SPEC, demand)
    assert made is not None
    return made


def test_a_steady_replica_is_what_a_simulated_one_settles_to():
    """The closed form and the played requests agree on what a token takes."""
    found = steady(SPEC, DEMAND, 20.0)
    requests = simulated(SPEC, DEMAND, 20.0)
    each_s = [(one.end_s - one.first_s) / 255 for one in requests]
    assert found is not None
    assert sum(each_s) / len(each_s) == pytest.approx(found.step_s, rel=0.15)


def test_a_replica_that_gets_more_than_its_most_falls_behind():
    most = most_rate(SPEC, DEMAND)
    assert keeps_up(SPEC, DEMAND, most)
    assert not keeps_up(SPEC, DEMAND, 1.01 * most)
    late = simulated(SPEC, DEMAND, 2 * most)
    assert late[-1].first_s - late[-1].arrival_s > 5 * (late[0].first_s - late[0].arrival_s) > 0


def test_a_plan_has_replicas_enough_and_not_one_more_than_the_rate_needs():
    made = planned(DEMAND)
    assert made.rps_per_replica <= made.most_rps_per_replica
    assert DEMAND.rps / (made.num_replicas - 1) > made.most_rps_per_replica
    assert made.first_p50_ms <= made.first_p95_ms <= DEMAND.first_ms
    assert made.output_tokens_per_s == 25_600


def test_a_shared_prefix_needs_fewer_replicas():
    alone, shared = (planned(replace(DEMAND, rps=400, prefix_share=share)) for share in (0.0, 0.75))
    assert shared.num_replicas < alone.num_replicas
    assert shared.first_p50_ms < alone.first_p50_ms


def test_a_stricter_wish_needs_more_replicas():
    usual, strict = planned(DEMAND), planned(replace(DEMAND, inter_ms=6.0))
    assert strict.num_replicas > usual.num_replicas


def test_little_memory_is_what_limits_a_replica():
    small = replace(SPEC, kv_bytes=2 << 30)
    found = steady(small, DEMAND, most_rate(small, DEMAND))
    assert found is not None
    assert found.kv_bytes == pytest.approx(0.9 * small.kv_bytes, rel=0.02)


def test_what_no_number_of_replicas_can_do_is_refused():
    with pytest.raises(ConfigError, match="others within"):
        plan_fleet({1: SPEC}, replace(DEMAND, inter_ms=0.1))
    with pytest.raises(ConfigError, match="first token within 1 ms"):
        plan_fleet({1: SPEC}, replace(DEMAND, first_ms=1))


def test_more_ranks_are_chosen_where_one_is_too_slow():
    """A step of one GPU reads all weights in 2.8 ms; four read a quarter each, and tell each other."""
    split = CostModel(shape=SHAPE.split(4), gpu=RUN.gpu, costs=SPEC.cost.costs, num_ranks=4)
    specs = {1: SPEC, 4: replace(SPEC, cost=split)}
    assert plan_fleet(specs, DEMAND).num_ranks == 1
    assert plan_fleet(specs, replace(DEMAND, inter_ms=2.7)).num_ranks == 4


def shown(*args: str) -> str:
    result = CliRunner(env={"COLUMNS": "120"}).invoke(app, ["plan", *args])
    return result.stdout + result.stderr


def test_the_command_says_replicas_ranks_and_what_to_expect():
    text = shown("bench/models/gemma3-1b", "--gpu", "h200", "--rps", "300", "--prompt", "512", "--output", "64")
    for part in ("replicas", "tensor parallel", "first token", "95% within", "output tokens/s", "19,200", RUN.commit):
        assert part in text


def test_the_command_gives_the_same_as_json():
    asked = ("bench/models/gemma3-1b", "--gpu", "H200", "--rps", "30", "--prompt", "512", "--output", "64", "--json")
    made = json.loads(shown(*asked))["fleet"]
    assert made["num_gpus"] == made["num_replicas"] * made["num_ranks"] == 1
    assert made["measured"] == {"gpu": "H200", "commit": RUN.commit, "date": RUN.date}


def test_a_named_device_has_its_own_memory():
    made = json.loads(shown("bench/models/gemma3-1b", "--gpu", "H200", "--json"))
    assert made["memory_bytes"] == RUN.gpu.memory_bytes


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--rps", "5"), "Add --gpu, one of H200"),
        (("--rps", "5", "--gpu", "A100"), "steps were measured on H200"),
        (("--gpu", "H200", "--gpu-memory", "80GiB"), "Leave --gpu-memory out"),
        (("--rps", "0", "--gpu", "H200"), "--rps: found 0"),
        (("--rps", "5", "--gpu", "H200", "--prompt", "40000"), "the longest context"),
    ],
)
def test_a_load_that_cannot_be_planned_is_refused_in_flags(args, told):
    assert told in shown("bench/models/gemma3-1b", *args)
