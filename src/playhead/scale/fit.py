"""The coefficients of `cost.py` from measured steps, and how far they are from steps they have not seen. No torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np

from playhead.errors import ConfigError
from playhead.scale.cost import AttentionShape, Floats, Gpu, ModelShape, StepCosts, StepWork, features

TOLERANCE = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """One measured step. With `is_held_out` the fit does not see it, and is checked against it."""

    name: str
    shape: ModelShape
    work: StepWork
    ms: float
    is_held_out: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Steps of one commit on one device."""

    gpu: Gpu
    commit: str
    date: str
    source: str
    steps: tuple[MeasuredStep, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Coefficients, and the relative error of each step: 0.03 where 3% too much is predicted."""

    costs: StepCosts
    errors: dict[str, float]
    held_out: dict[str, float]

    @property
    def worst_held_out(self) -> float:
        return max(map(abs, self.held_out.values()), default=0.0)


def fit(gpu: Gpu, steps: Sequence[MeasuredStep]) -> Fit:
    """The coefficients with the least relative error, none of them below zero."""
    seen = [one for one in steps if not one.is_held_out]
    rows = np.array([features(one.shape, gpu, one.work) / one.ms for one in seen])
    costs = StepCosts.of_vector(least_squares_from_zero(rows, np.ones(len(seen))))
    errors = {one.name: float(costs.vector() @ features(one.shape, gpu, one.work)) / one.ms - 1 for one in steps}
    return Fit(
        costs=costs,
        errors={one.name: errors[one.name] for one in seen},
        held_out={one.name: errors[one.name] for one in steps if one.is_held_out},
    )


def least_squares_from_zero(rows: Floats, wanted: Floats) -> Floats:
    """x >= 0 with the least |rows x - wanted|, by Lawson's and Hanson's active sets.

    Of columns that say the same, one gets a coefficient and the others get 0.
    """
    scale = np.linalg.norm(rows, axis=0)
    scale[scale == 0] = 1.0
    columns = rows / scale
    found, is_free = np.zeros(columns.shape[1]), np.zeros(columns.shape[1], dtype=np.bool_)
    for _ in range(16 * len(found)):
        slopes = np.where(is_free, -np.inf, columns.T @ (wanted - columns @ found))
        if slopes.max() <= TOLERANCE * len(wanted):
            break
        is_free[int(slopes.argmax())] = True
        while True:
            tried = np.zeros_like(found)
            tried[is_free] = np.linalg.lstsq(columns[:, is_free], wanted, rcond=1e-10)[0]
            if (tried[is_free] > 0).all():
                found = tried
                break
            # Go towards what was tried until the first coefficient reaches zero, and leave that one out.
            falling = is_free & (tried <= 0)
            share = (found[falling] / (found[falling] - tried[falling] + TOLERANCE)).min()
            found += share * (tried - found)
            is_free &= found > TOLERANCE
            found[~is_free] = 0.0
    solution: Floats = found / scale
    return solution


def read_runs(text: str) -> list[Run]:
    """The runs of a file of measured steps, the newest last."""
    record = json.loads(text)
    shapes = {name: read_shape(one) for name, one in record["shapes"].items()}
    gpus = {name: Gpu(name=name, **one) for name, one in record["gpus"].items()}
    return [
        Run(
            gpu=gpus[run["gpu"]],
            commit=run["commit"],
            date=run["date"],
            source=run["source"],
            steps=tuple(read_step(cell, shapes) for cell in run["cells"]),
        )
        for run in record["runs"]
    ]


def read_shape(record: dict[str, Any]) -> ModelShape:
    groups = tuple(AttentionShape(**one) for one in record["attention"])
    return ModelShape(**(record | {"attention": groups}))


def read_step(cell: dict[str, Any], shapes: dict[str, ModelShape]) -> MeasuredStep:
    """A cell is `batch` requests that decode at `context` tokens, or as many prompts of `prompt` tokens at once."""
    shape, batch = shapes[cell["model"]], cell["batch"]
    if "context" in cell:
        work = StepWork(num_rows=batch, kv_bytes=batch * shape.live_bytes(cell["context"]))
        name = f"{cell['model']} decode, {batch} at {cell['context']}"
    else:
        flops = batch * (shape.prompt_flops(0, cell["prompt"]) + shape.head_flops)
        work = StepWork(num_prompt_tokens=batch * cell["prompt"], prompt_flops=flops)
        name = f"{cell['model']} prompts, {batch} x {cell['prompt']}"
    return MeasuredStep(name=name, shape=shape, work=work, ms=cell["ms"], is_held_out=cell.get("held_out", False))


def shipped_runs() -> list[Run]:
    """The measured steps that come with the package."""
    return read_runs((files("playhead") / "assets" / "scale" / "steps.json").read_text(encoding="utf-8"))


def run_of(gpu: str, runs: Sequence[Run]) -> Run:
    """The newest run on this device."""
    found = [run for run in runs if run.gpu.name.lower() == gpu.lower()]
    if not found:
        known = ", ".join(dict.fromkeys(run.gpu.name for run in runs))
        raise ConfigError(f"gpu: found {gpu!r}; steps were measured on {known}. Choose one of them.")
    return found[-1]
