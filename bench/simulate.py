"""A fleet on virtual time under millions of requests: `python -m bench.simulate`. Needs no GPU.

python -m bench.simulate --replicas 100 --requests 200000 --router prefix,round-robin,least-loaded
python -m bench.simulate --replicas 10000 --requests 10000000 --router prefix
python -m bench.simulate --replicas 20 --autoscale 5:60 --swing 0.8 --requests 400000
python -m bench.simulate --sweep 5,10,15,20,25 --plots docs/pictures     # first tokens by rate, one line per router

The router and the policy are those that serve (`playhead.scale`). Replicas do the scheduler's arithmetic and take the
time of measured steps. A request begins with one of the prefixes and goes on alone; prefixes are as popular as words.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.costs import shape_in
from bench.scorecard import MODELS
from bench.simulate_plots import draw_fleet, draw_sweep, save
from playhead.scale.autoscale import Autoscaler, ScaleLimits
from playhead.scale.cost import CostModel
from playhead.scale.fit import fit, run_of, shipped_runs
from playhead.scale.router import Router
from playhead.scale.simulation.fleet import Fleet, LeastLoaded, Placement, PrefixAware, RoundRobin, Scaling
from playhead.scale.simulation.request import ReplicaSpec, SimRequest
from playhead.scale.simulation.traffic import TrafficSpec, arrivals

ROUTERS = ("prefix", "round-robin", "least-loaded")
SHOWN = (50, 95, 99)
COLUMNS = (
    "router",
    "requests/s each",
    "prompt tokens cached",
    "first token p50 / p95 / p99, ms",
    "busy, busiest / mean",
    "GPU s / M tokens",
    "CPU s",
)


class Recorder:
    """The figures of every request, in columns: ten million requests take 200 MB."""

    def __init__(self, num_requests: int) -> None:
        self.first_ms = array("f", bytes(4 * num_requests))
        self.whole_ms = array("f", bytes(4 * num_requests))
        self.num_ended = array("B", bytes(num_requests))
        self.num_prompt = self.num_cached = self.num_output = self.num_preemptions = 0

    def __call__(self, request: SimRequest) -> None:
        index, arrival_s = request.index, request.arrival_s
        self.first_ms[index] = 1e3 * (request.first_s - arrival_s)
        self.whole_ms[index] = 1e3 * (request.end_s - arrival_s)
        self.num_ended[index] += 1
        self.num_prompt += request.prompt_tokens
        self.num_cached += request.num_cached
        self.num_output += request.output_tokens
        self.num_preemptions += request.num_preemptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One run."""

    spec: ReplicaSpec
    traffic: TrafficSpec
    num_replicas: int
    router: str
    max_pages: int
    autoscale: ScaleLimits | None = None
    start_s: float = 30.0


def placement_of(scenario: Scenario) -> Placement:
    if scenario.router == "prefix":
        return PrefixAware(partial(Router, max_pages=scenario.max_pages))
    return RoundRobin() if scenario.router == "round-robin" else LeastLoaded()


def play(scenario: Scenario) -> dict[str, Any]:
    """The figures of a run."""
    began_s, cpu_s = time.perf_counter(), time.process_time()
    record = Recorder(scenario.traffic.num_requests)
    fleet = Fleet(scenario.spec, scenario.num_replicas, placement_of(scenario), record)
    scaling = None
    if scenario.autoscale is not None:
        scaling = Scaling(scaler=Autoscaler(scenario.autoscale), start_s=scenario.start_s)
    gc.disable()  # millions of objects live at once, none of them in a cycle
    try:
        fleet.play(arrivals(scenario.traffic), scaling)
    finally:
        gc.enable()
    ended = np.frombuffer(record.num_ended, dtype=np.uint8)
    if not (ended == 1).all():
        raise RuntimeError(f"{np.count_nonzero(ended != 1)} requests did not end exactly once: a bug in the simulation")
    return figures(scenario, fleet, record) | {
        "looks": fleet.log.looks,
        "wall_s": time.perf_counter() - began_s,
        "cpu_s": time.process_time() - cpu_s,
    }


def figures(scenario: Scenario, fleet: Fleet, record: Recorder) -> dict[str, Any]:
    replicas = [*fleet.replicas.values(), *fleet.gone]
    busy = np.array([one.busy_s for one in replicas])
    gpu_s = fleet.log.replica_seconds * scenario.spec.cost.num_ranks
    return {
        "router": scenario.router,
        "replicas": scenario.num_replicas,
        "requests": scenario.traffic.num_requests,
        "rate_per_replica": scenario.traffic.rate / scenario.num_replicas,
        "virtual_s": fleet.now_s,
        "hit_rate": record.num_cached / record.num_prompt,
        "best_hit_rate": scenario.traffic.shared_tokens * scenario.traffic.num_requests / record.num_prompt,
        "first_token_ms": spread(record.first_ms),
        "whole_ms": spread(record.whole_ms),
        "output_tokens_per_s": record.num_output / fleet.now_s,
        "busy_share": float(busy.sum() / fleet.log.replica_seconds),
        "imbalance": float(busy.max() / busy.mean()),
        "preemptions": record.num_preemptions,
        "steps": sum(one.num_steps for one in replicas),
        "gpu_hours": gpu_s / 3600,
        "gpu_s_per_million_tokens": gpu_s / record.num_output * 1e6,
        "max_kv_share": max(one.max_held_bytes for one in replicas) / scenario.spec.kv_bytes,
    }


def spread(values: array[float]) -> dict[str, float]:
    column = np.frombuffer(values, dtype=np.float32)
    shares = {f"p{p}": float(np.percentile(column, p)) for p in SHOWN}
    return {"mean": float(column.mean(dtype=np.float64)), **shares}


def table(runs: Sequence[dict[str, Any]]) -> str:
    """A row for each run."""
    rows = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for run in runs:
        first = " / ".join(f"{run['first_token_ms'][f'p{p}']:,.0f}" for p in SHOWN)
        rows.append(
            f"| {run['router']} | {run['rate_per_replica']:.1f} | {run['hit_rate']:.1%} of {run['best_hit_rate']:.1%} "
            f"| {first} | {run['busy_share']:.0%}, {run['imbalance']:.2f} | {run['gpu_s_per_million_tokens']:,.0f} "
            f"| {run['cpu_s']:,.0f} |"
        )
    return "\n".join(rows)


def replica_spec(args: argparse.Namespace) -> ReplicaSpec:
    run = run_of(args.gpu, shipped_runs())
    cost = CostModel(shape=shape_in(MODELS[args.model].path), gpu=run.gpu, costs=fit(run.gpu, run.steps).costs)
    return ReplicaSpec(
        cost=cost, max_running=args.max_num_seqs, chunk_tokens=args.chunk, kv_bytes=int(args.kv_gb * 1e9)
    )


def scenario_of(args: argparse.Namespace, spec: ReplicaSpec, router: str, rate: float) -> Scenario:
    traffic = TrafficSpec(
        rate=rate * args.replicas,
        num_requests=args.requests,
        prompt_tokens=args.prompt,
        output_tokens=args.output,
        prefix_tokens=args.prefix_tokens,
        num_prefixes=args.prefixes or 20 * args.replicas,
        swing=args.swing,
        seed=args.seed,
        max_tokens=2048,
    )
    limits = None
    if args.autoscale:
        least, _, most = args.autoscale.partition(":")
        limits = ScaleLimits(min_replicas=int(least), max_replicas=int(most), target_load=args.target_load)
    return Scenario(
        spec=spec,
        traffic=traffic,
        num_replicas=args.replicas,
        router=router,
        max_pages=args.max_pages,
        autoscale=limits,
    )


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(MODELS), default="gemma3-4b")
    parser.add_argument("--gpu", default="H200")
    parser.add_argument("--replicas", type=int, default=100)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--rate", type=float, default=15.0, help="requests per second for each replica [15]")
    parser.add_argument("--prompt", type=int, default=1280, help="tokens of a prompt, in the mean [1280]")
    parser.add_argument("--output", type=int, default=200, help="tokens of an answer, in the mean [200]")
    parser.add_argument("--prefix-tokens", type=int, default=1024, help="of a prompt that others share [1024]")
    parser.add_argument("--prefixes", type=int, help="different prefixes [20 for each replica]")
    parser.add_argument("--router", default="prefix", help=f"some of {','.join(ROUTERS)}")
    parser.add_argument("--max-pages", type=int, default=1 << 18, help="keys that the router remembers")
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--chunk", type=int, default=2048, help="prompt tokens of a step [2048]")
    parser.add_argument("--kv-gb", type=float, default=100.0, help="KV memory of a replica, in GB [100]")
    parser.add_argument("--autoscale", metavar="MIN:MAX", help="let the policy change the number of replicas")
    parser.add_argument("--target-load", type=float, default=48.0, help="requests to a replica, for the policy [48]")
    parser.add_argument("--swing", type=float, default=0.0, help="the rate goes up and down by this share, in 10 min")
    parser.add_argument(
        "--sweep", type=lambda text: [float(part) for part in text.split(",")], help="rates, one by one"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw PNGs there")
    return parser.parse_args(arguments)


def main() -> None:
    args = options()
    spec, runs = replica_spec(args), []
    for rate in args.sweep or [args.rate]:
        for router in args.router.split(","):
            runs.append(play(scenario_of(args, spec, router, rate)))
            print(json.dumps({name: value for name, value in runs[-1].items() if name != "looks"}), flush=True)
    print(table(runs))
    if args.json is not None:
        args.json.write_text("\n".join(map(json.dumps, runs)) + "\n")
    if args.plots is not None:
        if args.sweep:
            save(draw_sweep(runs), args.plots / "fleet-sweep.png")
        if args.autoscale:
            save(draw_fleet(runs[-1]), args.plots / "fleet-scaling.png")


if __name__ == "__main__":
    main()
