"""`playhead plan`: the memory that a model takes and, for a load, the replicas that serve it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from rich.table import Table

from playhead.cli.command import in_flags
from playhead.cli.options import DemandOptions, PlanOptions
from playhead.cli.plan import Memory, as_record, gpu_memory, plan_memory, planned_memory, show_memory
from playhead.cli.screen import Screen
from playhead.engine.config import ENGINE_SETTINGS, EngineConfig
from playhead.engine.tokenizer_files import resolve_model_name
from playhead.errors import ConfigError
from playhead.layers.spec import MoeSpec
from playhead.models.load import describe_model
from playhead.scale.cost import CostModel, shape_of
from playhead.scale.fit import Fit, Run, fit, run_of, shipped_runs
from playhead.scale.planner import Demand, FleetPlan, plan_fleet
from playhead.scale.simulation.request import ReplicaSpec
from playhead.settings import show_size

NUM_RANKS = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetReport:
    """A plan, the measurements behind it, and what a reader should know of both."""

    demand: Demand
    made: FleetPlan
    run: Run
    fitted: Fit
    notes: tuple[str, ...]


def run_plan(screen: Screen, options: PlanOptions, demand: DemandOptions, config: EngineConfig) -> None:
    """Print a plan as tables or as JSON."""
    if demand.gpu is not None and options.gpu_memory is not None:
        raise ConfigError("--gpu: --gpu-memory is given too; wanted one of the two. Leave --gpu-memory out.")
    memory = planned_memory(options.gpu_memory) if demand.gpu is None else memory_of(demand.gpu)
    # A model that one GPU has no room for may still be served by several.
    made = None if demand.rps is not None else plan_memory(options.model, config, memory)
    fleet = None if demand.rps is None else report_fleet(options.model, config, demand)
    if options.as_json:
        parts = ({} if made is None else as_record(made)) | ({} if fleet is None else {"fleet": fleet_record(fleet)})
        screen.out(json.dumps(parts), highlight=False)
        return
    if made is not None:
        show_memory(screen, made)
    if fleet is not None:
        screen.print(fleet_table(fleet))
        for note in fleet_notes(fleet):
            screen.print(in_flags(note, ENGINE_SETTINGS), markup=False, highlight=False)


def memory_of(gpu: str, num_ranks: int = 1) -> Memory:
    """The memory of devices whose steps were measured."""
    found = run_of(gpu, shipped_runs()).gpu
    name = f"{found.name} with {show_size(found.memory_bytes)}"
    return gpu_memory(num_ranks * found.memory_bytes, name if num_ranks == 1 else f"{num_ranks} x {name}")


def report_fleet(model: str, config: EngineConfig, options: DemandOptions) -> FleetReport:
    """The replicas that a load needs."""
    assert options.rps is not None, "the caller has looked"
    if options.gpu is None:
        known = ", ".join(dict.fromkeys(run.gpu.name for run in shipped_runs()))
        raise ConfigError(
            f"--rps: a load is planned for a device whose steps were measured. Add --gpu, one of {known}."
        )
    run = run_of(options.gpu, shipped_runs())
    fitted = fit(run.gpu, run.steps)
    demand = Demand(
        rps=options.rps,
        prompt_tokens=options.prompt,
        output_tokens=options.output,
        prefix_share=options.prefix_share,
        first_ms=options.first_ms,
        inter_ms=options.inter_ms,
    )
    specs, notes = replica_specs(model, config, run, fitted, demand)
    return FleetReport(demand=demand, made=plan_fleet(specs, demand), run=run, fitted=fitted, notes=notes)


def replica_specs(
    model: str, config: EngineConfig, run: Run, fitted: Fit, demand: Demand
) -> tuple[dict[int, ReplicaSpec], tuple[str, ...]]:
    """A replica for each number of ranks that has room for the model and for requests of this length."""
    specs: dict[int, ReplicaSpec] = {}
    notes: list[str] = []
    spec = describe_model(resolve_model_name(model), config_only=True).spec
    shape = None
    for num_ranks in NUM_RANKS:
        try:
            made = plan_memory(model, config, memory_of(run.gpu.name, num_ranks))
        except ConfigError as error:
            notes.append(f"{num_ranks} GPU{'s' if num_ranks > 1 else ''} to a replica: {error}")
            continue
        shape = shape or shape_of(spec, made.kv.geometry, made.weight_bytes)
        cost = CostModel(shape=shape.split(num_ranks), gpu=run.gpu, costs=fitted.costs, num_ranks=num_ranks)
        specs[num_ranks] = ReplicaSpec.of_plan(
            cost, made.kv, max_context_tokens=demand.prompt_tokens + demand.output_tokens, num_parts=num_ranks
        )
    if not specs:
        raise ConfigError(notes[-1])
    longest = made.kv.limits.max_context_tokens
    if demand.prompt_tokens + demand.output_tokens > longest:
        raise ConfigError(
            f"--prompt and --output: found {demand.prompt_tokens} + {demand.output_tokens} tokens; wanted at most "
            f"{longest}, the longest context."
        )
    if any(isinstance(layer.mlp, MoeSpec) for layer in spec.layers):
        notes.append("No step of a model with experts was measured: a step is taken to read all of them.")
    return specs, tuple(notes)


def fleet_table(found: FleetReport) -> Table:
    """What to run, and what to expect."""
    made, demand = found.made, found.demand
    shared = f", {demand.prefix_share:.0%} of a prompt cached" if demand.prefix_share else ""
    asked = f"{demand.rps:,g} requests/s of {demand.prompt_tokens:,} + {demand.output_tokens:,} tokens{shared}"
    table = Table("fleet", "expected", "what", title=f"{asked} on {found.run.gpu.name}")
    for name, value, what in (
        (
            "replicas",
            f"{made.num_replicas:,}",
            f"{made.rps_per_replica:,.2f} requests/s each, at most {made.most_rps_per_replica:,.2f}",
        ),
        (
            "tensor parallel",
            f"{made.num_ranks}",
            f"{made.num_gpus:,} {'GPU' if made.num_gpus == 1 else 'GPUs'} together",
        ),
        ("first token", f"{made.first_p50_ms:,.1f} ms", f"95% within {made.first_p95_ms:,.1f} ms"),
        ("later tokens", f"{made.inter_ms:,.2f} ms each", f"{made.num_rows:,.0f} requests decode at once in a replica"),
        ("output tokens/s", f"{made.output_tokens_per_s:,.0f}", "of the fleet"),
    ):
        table.add_row(name, value, what)
    return table


def fleet_notes(found: FleetReport) -> list[str]:
    """Where the figures come from, and what they leave out."""
    run, worst = found.run, found.fitted.worst_held_out
    basis = f"Expected from steps measured on one {run.gpu.name} ({run.date}, commit {run.commit})"
    notes = [f"{basis}; steps that the fit had not seen were met within {worst:.0%}. HTTP and the network come on top."]
    if found.made.num_ranks > 1:
        notes.append("Tensor parallel: what GPUs tell each other in a step is assumed, not measured.")
    return [*notes, *found.notes]


def fleet_record(found: FleetReport) -> dict[str, object]:
    return {
        "demand": asdict(found.demand),
        **asdict(found.made),
        "num_gpus": found.made.num_gpus,
        "measured": {"gpu": found.run.gpu.name, "commit": found.run.commit, "date": found.run.date},
        "worst_held_out": found.fitted.worst_held_out,
        "notes": fleet_notes(found),
    }
