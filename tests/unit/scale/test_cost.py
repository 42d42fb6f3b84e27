"""What a step takes, and the fit to measured steps."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from itertools import product

import numpy as np
import pytest
import torch

from bench import costs as command
from playhead.engine.memory import num_weight_bytes
from playhead.errors import ConfigError
from playhead.models.load import describe_model
from playhead.scale.cost import AttentionShape, CostModel, StepWork, features, shape_of
from playhead.scale.fit import MeasuredStep, fit, least_squares_from_zero, run_of, shipped_runs
from playhead.step.forward import kv_geometry
from tests.unit.scale.scheduled import COSTS, GPU, toy_cost, toy_plan

SHAPE = toy_cost(toy_plan()).shape
WORKS = [
    StepWork(num_rows=rows, kv_bytes=rows * kv, num_prompt_tokens=tokens, prompt_flops=2e5 * tokens)
    for rows, kv in ((0, 0), (1, 1e4), (8, 1e5), (64, 3e4))
    for tokens in (0, 16, 900)
    if rows or tokens
]


def test_features_and_seconds_are_the_same_sum():
    model = CostModel(shape=SHAPE, gpu=GPU, costs=COSTS)
    for work in WORKS:
        assert COSTS.vector() @ features(SHAPE, GPU, work) == pytest.approx(1e3 * model.step_s(work))


def test_a_fit_finds_the_coefficients_that_made_the_steps():
    model = CostModel(shape=SHAPE, gpu=GPU, costs=COSTS)
    shapes = [SHAPE, replace(SHAPE, weight_bytes=5_000_000), replace(SHAPE, num_layers=30, layer_flops=10**6)]
    steps = [
        MeasuredStep(name=f"{i} {j}", shape=shape, work=work, ms=1e3 * replace(model, shape=shape).step_s(work))
        for i, shape in enumerate(shapes)
        for j, work in enumerate(WORKS)
    ]
    held_out = replace(steps[5], is_held_out=True)
    found = fit(GPU, [*steps[:5], held_out, *steps[6:]])
    assert asdict(found.costs) == pytest.approx(asdict(COSTS), rel=1e-6)
    assert list(found.held_out) == ["0 5"]
    assert found.worst_held_out < 1e-9


def test_no_coefficient_is_below_zero():
    rows = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
    assert least_squares_from_zero(rows, np.array([3.0, 2.0, 1.0])) == pytest.approx([2.0, 0.0])
    assert least_squares_from_zero(rows, np.array([2.0, 3.0, 4.0])) == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize("seed", [0, 1, 14, 24, 50])
def test_no_other_coefficients_from_zero_on_are_better(seed):
    """Every set of columns is tried: the best whose own least squares has no coefficient below zero is the answer.

    The last three take a column in and leave it out again.
    """
    rng = np.random.default_rng(seed)
    rows, wanted = rng.random((7, 4)), rng.random(7)
    left = []
    for columns in product([False, True], repeat=4):
        tried = np.zeros(4)
        tried[list(columns)] = np.linalg.lstsq(rows[:, list(columns)], wanted, rcond=None)[0]
        if (tried >= 0).all():
            left.append(np.linalg.norm(rows @ tried - wanted))
    found = least_squares_from_zero(rows, wanted)
    assert (found >= 0).all()
    assert np.linalg.norm(rows @ found - wanted) == pytest.approx(min(left))


def test_of_equal_columns_one_is_used():
    rows = np.array([[1.0, 1.0], [2.0, 2.0]])
    assert sorted(least_squares_from_zero(rows, np.array([3.0, 6.0]))) == pytest.approx([0.0, 3.0])


@pytest.mark.parametrize("window", [None, 1, 2, 5, 100])
def test_pairs_are_counted_as_one_would_count_them(window):
    group = AttentionShape(window=window, num_kv_heads=1, kv_bytes_per_token=1, flops_per_key=1)
    for first, end in ((0, 0), (0, 3), (2, 9), (4, 5), (7, 20)):
        assert group.num_pairs(first, end) == sum(min(n + 1, window or 99) for n in range(first, end))


def test_the_shape_of_a_model_is_that_of_its_weights():
    """All but the norms are matrices, and a tied head is one of them."""
    spec = describe_model("bench/models/gemma3-1b", config_only=True).spec
    weight_bytes = num_weight_bytes(spec, torch.bfloat16)
    shape = shape_of(spec, kv_geometry(spec, page_size=16, dtype=torch.bfloat16), weight_bytes)
    assert shape.layer_flops + shape.head_flops == pytest.approx(weight_bytes, rel=1e-3)
    assert shape.live_bytes(8192) == 4096 * 8192 + 22528 * 512


def test_a_rank_has_its_part_and_shares_the_heads_that_are_too_few():
    part = SHAPE.split(4)
    assert part.weight_bytes == SHAPE.weight_bytes // 4
    assert part.live_bytes(100) == SHAPE.live_bytes(100), "one KV head is on every rank"
    alone = CostModel(shape=SHAPE, gpu=GPU, costs=COSTS)
    ranks = CostModel(shape=part, gpu=GPU, costs=COSTS, num_ranks=4)
    assert ranks.fixed_s(1) != alone.fixed_s(1)
    with pytest.raises(ConfigError, match="ranks"):
        CostModel(shape=SHAPE, gpu=GPU, costs=COSTS, num_ranks=0)


def test_the_shipped_steps_are_met_within_the_stated_error():
    """A coefficient or a cell that changes must keep what docs/scale.md says: 12% on cells the fit has not seen."""
    run = run_of("h200", shipped_runs())
    found = fit(run.gpu, run.steps)
    assert max(map(abs, found.errors.values())) < 0.10
    assert len(found.held_out) >= 8
    assert found.worst_held_out < 0.12


def test_a_device_without_steps_is_refused():
    with pytest.raises(ConfigError, match="measured on H200"):
        run_of("A100", shipped_runs())


def test_the_command_adds_what_the_scorecard_measured(tmp_path):
    lines = [
        {"model": "llama3.2-1b", "cell": "decode", "case": "batch 8", "measured": 1.5},
        {"model": "llama3.2-1b", "cell": "decode", "case": "batch 8", "measured": 1.2},
        {"model": "llama3.2-1b", "cell": "prefill", "case": "1 x 512", "measured": 3.0},
        {"model": "llama3.2-1b", "cell": "mixed", "case": "256 requests", "measured": 4e4},
        {"model": "llama3.2-1b", "cell": "decode", "case": "batch 32", "skipped": "no time"},
    ]
    results = tmp_path / "results.jsonl"
    results.write_text("\n".join(map(json.dumps, lines)))
    record = json.loads(command.STEPS.read_text())
    before = len(record["runs"])
    command.add(record, results, commit="abc", gpu="H200")
    assert [(cell["batch"], cell["ms"]) for cell in record["runs"][before]["cells"]] == [(8, 1.2), (1, 3.0)]
    assert record["runs"][before]["cells"][0]["context"] == 256
    assert json.loads(command.as_text(record)) == record


def test_a_report_names_every_held_out_cell():
    run = run_of("H200", shipped_runs())
    text = command.report(run)
    assert all(one.name in text for one in run.steps if one.is_held_out)
