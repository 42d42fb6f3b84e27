"""Before its first step a worker has compiled what its steps will launch."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from playhead.graph.shapes import bucket_sizes
from playhead.models.build import spec_from_config
from playhead.models.checkpoint.dummy import dummy_decoder
from playhead.step.compile_ahead import compile_ahead, telling_sizes
from playhead.testing.tiny_worker import tiny_worker
from tests.uninterpreted import output_of
from tests.unit.step.launches_ahead import SLOW_IMPORT
from tests.unit.step.test_steps_on_a_gpu import MODELS

pytest.importorskip("triton")

BENCH = Path(__file__).resolve().parents[3] / "bench" / "models"
FOUR_LAYERS = {"num_hidden_layers": 4, "sliding_window_pattern": 2, "layer_types": None}


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("gemma3-1b", []),
        ("llama-1b", []),
        ("gpt_oss", ["--rank"]),
        ("large head", ["--batch-invariant"]),
    ],
)
def test_every_kernel_of_a_step_of_any_captured_size_was_compiled_before(model, options):
    config = MODELS.get(model) or json.loads((BENCH / model / "config.json").read_text()) | FOUR_LAYERS
    found = json.loads(output_of(Path(__file__).with_name("launches_ahead.py"), json.dumps(config), *options))
    assert len(found["launched"]) > 15
    assert found["ahead"] == found["launched"]
    # Experts are routed by ops of torch, whose shapes torch finds with its own checks.
    assert found["imported"] == ([SLOW_IMPORT] if model == "gpt_oss" else [])


def test_sizes_with_the_same_tiles_are_rehearsed_once():
    assert telling_sizes((1, 2, 12, 16, 20, 24)) == [24, 16, 2, 1]
    assert telling_sizes(()) == []
    assert len(telling_sizes(bucket_sizes(8448))) == 15


def test_two_layers_of_a_kind_run_and_all_are_back_afterwards():
    kinds = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]
    spec = spec_from_config({**MODELS["gemma3"], "num_hidden_layers": 4, "layer_types": kinds})
    decoder = dummy_decoder(spec, dtype=torch.float32, device=torch.device("cpu"))
    with decoder.few_layers_of_each_kind():
        assert [block.index for block in decoder._stack] == [0, 1, 3]
    assert [block.index for block in decoder._stack] == [0, 1, 2, 3]


def test_a_step_that_cannot_be_rehearsed_is_told_about_and_nothing_else_happens(caplog):
    @contextmanager
    def compiling():
        raise RuntimeError("no shape of this op is known")
        yield

    worker = tiny_worker()
    compile_ahead(worker, compiling)
    assert "no shape of this op is known" in caplog.text
    assert not any(runner.captured for runner in worker.runners)
