"""A step over tokens: the layer stack is captured, logits come after it, and neither records gradients."""

from __future__ import annotations

import pytest
import torch

from playhead.graph import Mode
from playhead.schedule.request import Chunk
from playhead.step.forward import Forward
from playhead.testing.tiny_worker import TINY_GEMMA3, last_logits, tiny_worker

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

    def watched(self, h_NM):
        modes.append(torch.is_grad_enabled())
        return head(self, h_NM)

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
