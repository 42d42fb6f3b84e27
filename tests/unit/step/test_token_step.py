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


def rows_multiplied_by(worker, weight, num_tokens):
    """How many rows each op of the captured steps of this size has beside a matrix."""
    recordings = worker.prefill.captured[num_tokens].recordings
    ops = [op for recording in recordings for op in recording.log.ops if not op.is_view]
    readers = [op for op in ops if any(access.start == weight.data_ptr() for access in op.reads)]
    return [access.shape[0] for op in readers for access in op.writes]


@pytest.mark.parametrize("mode", [Mode.FULL, Mode.BREAKABLE])
def test_the_last_layer_is_computed_for_as_many_rows_as_requests_may_run(mode):
    """Of the other tokens it keeps the keys: nothing reads more of them."""
    worker = tiny_worker(mode)
    last_logits(worker, [list(range(7, 15))])
    num_tokens, max_running = 8, worker.config.limits.max_running
    *_, before, last = worker.model.decoder.blocks
    assert max_running == 4
    for block, num_rows in ((before, num_tokens), (last, max_running)):
        assert rows_multiplied_by(worker, block.attention.qkv.weight, num_tokens) == [num_tokens]
        for linear in (block.attention.out, block.mlp.gate_up, block.mlp.down):
            assert rows_multiplied_by(worker, linear.weight, num_tokens) == [num_rows]


@pytest.mark.parametrize("mode", [*CAPTURED, Mode.EAGER])
def test_a_step_over_tokens_gives_a_row_for_each_request(mode):
    """In the order of the requests, of which some are longer than as many requests may run."""
    worker, prompts = tiny_worker(mode, prefix_caching=False), [list(range(7, 15)), [16], [17, 18]]
    together_NV = last_logits(worker, prompts)
    alone_NV = torch.cat([last_logits(worker, [prompt]) for prompt in prompts])
    assert together_NV.shape[0] == len(prompts)
    torch.testing.assert_close(together_NV, alone_NV)


def report_on(worker, prompt):
    """The next token, and the logprobs of all tokens of a prompt but its first."""
    seq = worker.kv.admit("reported", prompt)
    worker.kv.extend(seq, len(prompt))
    chunk = Chunk.newest(seq, prompt)
    params = replace(chunk.request.params, prompt_logprobs=1)
    chunk = replace(chunk, request=replace(chunk.request, params=params, prompt=tuple(prompt)))
    collected = worker.collect(worker.launch([chunk]))
    worker.kv.finish(seq, prompt)
    return collected.sampled.tokens, collected.prompt


@pytest.mark.parametrize("mode", [*CAPTURED, Mode.EAGER])
def test_a_step_that_reports_on_a_prompt_computes_all_rows(mode):
    worker, prompt = tiny_worker(mode, prefix_caching=False), list(range(7, 15))
    wanted_V = last_logits(worker, [prompt])[0]
    assert worker.whole_prefill is None, "made when the first request wants a report"
    tokens, report = report_on(worker, prompt)
    assert tokens == [int(wanted_V.argmax())]
    assert len(report.tokens) == len(prompt) - 1 > worker.config.limits.max_running
    assert worker.whole_prefill in worker.runners
    assert last_logits(worker, [prompt])[0].argmax() == wanted_V.argmax()


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
