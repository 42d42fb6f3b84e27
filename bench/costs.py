"""The cost model of a step against measured steps: `python -m bench.costs`. It prints the fit and its errors.

python -m bench.costs                                                 # the steps that come with the package
python -m bench.costs --add RESULTS.jsonl --commit 1a2b3c4 --gpu H200  # first put in what bench.h200 --json wrote

The fit sees every cell that is not held out. It is then checked against the held-out cells and, model by model, with
all cells of that model left out: the second says what to expect of a model that nobody has measured. Last, whole
workloads that were measured beside the steps are played on a simulated replica.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from bench.measured_llm import CHUNK_TOKENS, workload_a
from bench.scorecard import CELLS, MODELS
from bench.workload import DECODE_NEW, throughput_set
from playhead.engine.memory import num_weight_bytes
from playhead.models.load import describe_model
from playhead.scale.cost import CostModel, ModelShape, shape_of
from playhead.scale.fit import Fit, MeasuredStep, Run, fit, read_runs, read_shape
from playhead.scale.simulation.replica import SimReplica
from playhead.scale.simulation.request import ReplicaSpec, SimRequest
from playhead.step.forward import kv_geometry

ROOT = Path(__file__).resolve().parent.parent
STEPS = ROOT / "src" / "playhead" / "assets" / "scale" / "steps.json"
PAGE_SIZE = 16


def shape_in(folder: Path) -> ModelShape:
    """The shape of a checkpoint's config, in bfloat16."""
    spec = describe_model(str(folder), config_only=True).spec
    geometry = kv_geometry(spec, page_size=PAGE_SIZE, dtype=torch.bfloat16)
    return shape_of(spec, geometry, num_weight_bytes(spec, torch.bfloat16))


def cells_of(lines: Iterable[str]) -> list[dict[str, Any]]:
    """The decode and prompt cells of what `bench.h200 --json` wrote; of two measurements of one cell the newer."""
    cases = {(case.cell, case.name): case for cell in ("decode", "context", "prefill") for case in CELLS[cell]}
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for text in lines:
        line = json.loads(text)
        case = cases.get((line.get("cell"), line.get("case")))
        if case is None or "measured" not in line:
            continue
        cell: dict[str, Any] = {"model": line["model"], "batch": case.batch}
        # A decode cell is the mean step over its new tokens, so over contexts around their middle.
        length = "prompt" if case.cell == "prefill" else "context"
        cell[length] = case.prompt_tokens + (DECODE_NEW // 2 if length == "context" else 0)
        found[line["model"], case.cell, case.name] = cell | {"ms": line["measured"]}
    return list(found.values())


def add(record: dict[str, Any], results: Path, *, commit: str, gpu: str) -> None:
    """Put a run at the end of a record of measured steps."""
    cells = cells_of(results.read_text().splitlines())
    for name in {cell["model"] for cell in cells} - set(record["shapes"]):
        record["shapes"][name] = asdict(shape_in(MODELS[name].path))
    today = datetime.now(UTC).date().isoformat()
    source = "python -m bench.h200, dummy weights in bfloat16"
    record["runs"].append({"gpu": gpu, "commit": commit, "date": today, "source": source, "cells": cells})


def as_text(record: dict[str, Any]) -> str:
    """The record with a line for each shape and each cell, so that a difference can be read."""
    shapes = ",\n".join(f"  {json.dumps(name)}: {json.dumps(shape)}" for name, shape in record["shapes"].items())
    runs = []
    for run in record["runs"]:
        facts = json.dumps({name: value for name, value in run.items() if name != "cells"})
        cells = ",\n".join(f"   {json.dumps(cell)}" for cell in run["cells"])
        runs.append(f'  {facts[:-1]}, "cells": [\n{cells}\n  ]}}')
    together = ",\n".join(runs)
    gpus = json.dumps(record["gpus"])
    return f'{{\n "gpus": {gpus},\n "shapes": {{\n{shapes}\n }},\n "runs": [\n{together}\n ]\n}}\n'


def without(run: Run, shape: ModelShape) -> Fit:
    """The fit of all cells but those of one model, which it is checked against."""
    return fit(run.gpu, [replace(one, is_held_out=one.shape == shape) for one in run.steps])


def report(run: Run) -> str:
    """Coefficients and errors as text."""
    found = fit(run.gpu, run.steps)
    lines = [f"{run.gpu.name}, commit {run.commit}, {run.date}: {len(found.errors)} cells fitted"]
    lines += [f"  {name:<18}{value:8.3f}" for name, value in asdict(found.costs).items()]
    lines += ["", f"fitted: {summary(found.errors.values())}", f"held out: {summary(found.held_out.values())}"]
    lines += [
        f"  {name:<40}{measured_ms(run.steps, name):8.2f} ms {error:+7.1%}" for name, error in found.held_out.items()
    ]
    lines += ["", "all cells of a model left out:"]
    for name, shape in {one.name.split()[0]: one.shape for one in run.steps}.items():
        lines.append(f"  {name:<14}{summary(without(run, shape).held_out.values())}")
    return "\n".join(lines)


def whole_workload(run: Run, shape: ModelShape, workload: tuple[list[int], list[int]]) -> float:
    """Output tokens per second of requests that all come at once, by a simulated replica as the scorecard's engine."""
    cost = CostModel(shape=shape, gpu=run.gpu, costs=fit(run.gpu, run.steps).costs)
    spec = ReplicaSpec(
        cost=cost, max_running=256, chunk_tokens=CHUNK_TOKENS, kv_bytes=run.gpu.memory_bytes, has_prefix_cache=False
    )
    replica = SimReplica(spec, lambda request: None)
    for index, (prompt, output) in enumerate(zip(*workload, strict=True)):
        replica.submit(SimRequest(index=index, arrival_s=0, prompt_tokens=prompt, output_tokens=output))
    replica.advance(math.inf)
    return sum(workload[1]) / replica.now_s


def workload_report(record: dict[str, Any], run: Run) -> str:
    """Whole workloads that were measured beside the steps, and what a simulated replica makes of them."""
    prompts, outputs = throughput_set("throughput0")
    a_prompts, a_outputs = workload_a()
    lengths = {"mixed": ([*map(len, prompts)], outputs), "workload_a": ([*map(len, a_prompts)], a_outputs)}
    lines = ["whole workloads, output tokens/s: simulated, measured"]
    for cell in next(one for one in record["runs"] if one["commit"] == run.commit).get("workloads", ()):
        found = whole_workload(run, read_shape(record["shapes"][cell["model"]]), lengths[cell["name"]])
        error = found / cell["tokens_per_s"] - 1
        lines.append(f"  {cell['model']:<14}{cell['name']:<12}{found:8,.0f}{cell['tokens_per_s']:8,.0f} {error:+7.1%}")
    return "\n".join(lines)


def measured_ms(steps: Sequence[MeasuredStep], name: str) -> float:
    return next(one.ms for one in steps if one.name == name)


def summary(errors: Iterable[float]) -> str:
    sizes = [abs(one) for one in errors]
    if not sizes:
        return "none"
    return f"{len(sizes)} cells, error {statistics.mean(sizes):.1%} in the mean, {max(sizes):.1%} at most"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--add", type=Path, metavar="FILE", help="what bench.h200 --json wrote")
    parser.add_argument("--commit", help="the commit that was measured")
    parser.add_argument("--gpu", default="H200", help="the device it was measured on")
    parser.add_argument("--steps", type=Path, default=STEPS, help="the file of measured steps")
    args = parser.parse_args()
    if args.add is not None:
        if args.commit is None:
            parser.error("--add needs --commit: a figure without its commit says nothing")
        record = json.loads(args.steps.read_text())
        add(record, args.add, commit=args.commit, gpu=args.gpu)
        args.steps.write_text(as_text(record))
    text = args.steps.read_text()
    for run in read_runs(text):
        print(report(run), workload_report(json.loads(text), run), sep="\n\n")


if __name__ == "__main__":
    main()
