"""A step over tokens: the layer stack is captured, logits come after it, and neither records gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from playhead.graph import Mode
from playhead.schedule.request import Chunk
from playhead.step.forward import Forward
from playhead.testing.tiny_worker import TINY_GEMMA3, last_logits, tiny_worker
from tests.counting import CalledOps

VOCAB_SIZE = 61  # no other size of the model
CAPTURED = [Mode.FULL, Mode.BREAKABLE, Mode.PIECEWISE]


@pytest.mark.parametrize("mode", [*CAPTURED, Mode.EAGER])
def test_logits_after_a_step_have_no_gradients(mode):
    """A weight that wants them would make every step keep its inputs."""
    worker = tiny_worker(mode)
    worker.model.decoder.embedding_VM.requires_grad_()
    seq = worker.kv.admit("r", [7, 8, 9])
    worker.kv.extend(seq, 3)
    launched = worker.launch([Chunk.newest(seq, [7, 8, 9])])
    assert not launched.logits_NV.requires_grad
    worker.collect(launched)


@pytest.mark.parametrize("mode", [*CAPTURED, Mode.EAGER])
def test_logits_after_a_step_are_computed_with_gradients_off(mode, monkeypatch):
    head, modes = Forward._head, []

    def watched(self, *tensors):
        modes.append(torch.is_grad_enabled())
        return head(self, *tensors)

    monkeypatch.setattr(Forward, "_head", watched)
    last_logits(tiny_worker(mode), [[7, 8, 9]])
    assert modes == [False]


@pytest.mark.parametrize("mode", CAPTURED)
def test_captured_steps_over_tokens_hold_no_logits(mode):
    worker = tiny_worker(mode, model={**TINY_GEMMA3, "vocab_size": VOCAB_SIZE})
    last_logits(worker, [[7, 8, 9], [10, 11]])
    captured = list(worker.prefill.captured.values())
    assert captured
    for step in captured:
        accesses = [access for recording in step.recordings for op in recording.log.ops for access in op.writes]
        assert accesses
        assert not any(access.shape[-1:] == (VOCAB_SIZE,) for access in accesses)
        assert isinstance(step.output, torch.Tensor)
        assert step.output.shape[-1] == worker.model.decoder.spec.hidden_size


def test_tokens_after_a_step_are_chosen_with_few_calls(monkeypatch):
    """On a GPU each is a launch of its own, behind the graph: memory and views of a size are made once."""
    sample_last, called = Forward.sample_last, []

    def watched(self, *args):
        with CalledOps() as ops:
            output = sample_last(self, *args)
        called.append([str(op) for op in ops.called])
        return output

    monkeypatch.setattr(Forward, "sample_last", watched)
    worker = tiny_worker(Mode.FULL, prefix_caching=False)
    for _ in range(2):
        last_logits(worker, [[7, 8, 9], [10, 11]])
    first, second = called
    assert {"aten.slice.Tensor", "aten.new_empty.default"} <= set(first)
    assert len(second) <= 6
    assert not [name for name in second if "slice" in name or "empty" in name]


def test_the_newest_tokens_of_a_step_go_to_their_rows():
    """A request whose prompt goes on shows the sink's row, whatever was drawn for it."""
    worker = tiny_worker(Mode.FULL)
    chunks = []
    for i, prompt in enumerate([[7, 8, 9], [10, 11], [12, 13]]):
        seq = worker.kv.admit(f"request {i}", prompt)
        worker.kv.extend(seq, len(prompt))
        chunks.append(replace(Chunk.newest(seq, prompt), samples=i != 1))
    newest_R = worker.forward.newest_R
    newest_R.fill_(-5)
    launched = worker.launch(chunks)
    tokens = worker.collect(launched).sampled.tokens
    assert newest_R[[chunk.seq.row for chunk in chunks]].tolist() == [tokens[0], -5, tokens[2]]
    assert newest_R.dtype is torch.int32
