"""Before its first step a worker has compiled what its steps will launch."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import playhead.kernels
from playhead.graph.shapes import bucket_sizes
from playhead.models.build import spec_from_config
from playhead.models.checkpoint.dummy import dummy_decoder
from playhead.step.compile_ahead import compile_ahead, telling_sizes
from playhead.step.kept_kernels import KeptKernels
from playhead.testing.tiny_worker import LIMITS, tiny_worker
from playhead.types import Mode
from tests.uninterpreted import output_of
from tests.unit.step.test_steps_on_a_gpu import MODELS

pytest.importorskip("triton")

GEMMA = Path(__file__).resolve().parents[3] / "bench" / "models" / "gemma3-1b" / "config.json"


@pytest.mark.parametrize(
    ("model", "options"), [("gemma3-1b", []), ("gpt_oss", ["--rank"]), ("large head", ["--batch-invariant"])]
)
def test_every_kernel_of_a_step_of_any_captured_size_was_compiled_before(model, options):
    config = MODELS.get(model) or {**json.loads(GEMMA.read_text()), "num_hidden_layers": 4, "sliding_window_pattern": 2}
    found = json.loads(output_of(Path(__file__).with_name("launches_ahead.py"), json.dumps(config), *options))
    assert len(found["launched"]) > 15
    assert found["ahead"] == found["launched"]


def test_sizes_with_the_same_tiles_are_rehearsed_once():
    assert telling_sizes((1, 2, 12, 16, 20, 24)) == [24, 16, 2, 1]
    assert telling_sizes(()) == []
    assert len(telling_sizes(bucket_sizes(8448))) == 15


def test_layers_of_one_kind_run_once_and_all_are_back_afterwards():
    kinds = ["sliding_attention", "full_attention"]
    spec = spec_from_config({**MODELS["gemma3"], "num_hidden_layers": 4, "layer_types": 2 * kinds})
    decoder = dummy_decoder(spec, dtype=torch.float32, device=torch.device("cpu"))
    with decoder.one_layer_of_each_kind():
        assert [block.index for block in decoder._stack] == [0, 1]
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


def without_sizes(limits=LIMITS):
    """A worker on a CPU, where there is no kernel to rehearse: it captures nothing."""
    return tiny_worker(Mode.EAGER, limits=limits)


def num_rehearsed(worker, kept):
    """How often the kernels of its steps are looked for."""
    times = []

    @contextmanager
    def compiling():
        times.append(1)
        yield

    compile_ahead(worker, compiling, kept)
    return len(times)


def test_kernels_that_are_kept_are_not_looked_for_again(tmp_path):
    """By workers alike, with the same compiler, as long as none was deleted."""
    (tmp_path / "a kernel").mkdir()
    kept = KeptKernels(tmp_path, "triton 1")
    assert [num_rehearsed(without_sizes(), kept) for _ in range(2)] == [1, 0]
    assert num_rehearsed(without_sizes(replace(LIMITS, max_running=3)), kept) == 1
    assert num_rehearsed(without_sizes(), replace(kept, compiler="triton 2")) == 1
    (tmp_path / "a kernel").rmdir()
    assert num_rehearsed(without_sizes(), kept) == 1


def test_a_worker_on_other_code_is_rehearsed_again(tmp_path, monkeypatch):
    worker, kept = without_sizes(), KeptKernels(tmp_path, "triton 1")
    num_rehearsed(worker, kept)
    code = tmp_path / "code"
    code.mkdir()
    (code / "__init__.py").write_text("# other kernels")
    monkeypatch.setattr(playhead.kernels, "__file__", str(code / "__init__.py"))
    assert num_rehearsed(worker, kept) == 1


@pytest.mark.parametrize("text", ["", "many"])
def test_a_note_that_says_nothing_and_a_folder_that_is_not_there_cost_a_rehearsal(tmp_path, text):
    worker, kept = without_sizes(), KeptKernels(tmp_path, "triton 1")
    assert num_rehearsed(worker, kept) == 1
    for note in tmp_path.glob("*.txt"):
        note.write_text(text)
    assert num_rehearsed(worker, kept) == 1
    assert [num_rehearsed(worker, KeptKernels(tmp_path / "none", "triton 1")) for _ in range(2)] == [1, 1]


def test_what_could_not_be_rehearsed_is_not_noted(tmp_path):
    @contextmanager
    def compiling():
        raise RuntimeError("no shape of this op is known")
        yield

    worker, kept = without_sizes(), KeptKernels(tmp_path, "triton 1")
    compile_ahead(worker, compiling, kept)
    assert num_rehearsed(worker, kept) == 1
