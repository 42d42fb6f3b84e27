"""Pieces as a GPU's compiler is given them: Inductor takes what a trace of a step gives it, up to the code it makes."""

from __future__ import annotations

from torch._functorch.aot_autograd import make_boxed_func
from torch._inductor import compile_fx

from playhead.graph.piecewise import with_inductor
from playhead.step import build
from playhead.testing.tiny_worker import TINY_GEMMA3, dense_logits, differences, last_logits, tiny_worker
from playhead.types import Mode

TWO_LAYERS = {**TINY_GEMMA3, "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}


def as_lowered(graph, inputs, **settings):
    """In the place of code: the ops that Inductor would make it of."""
    return make_boxed_func(graph.forward)


def test_a_step_over_tokens_is_compiled_in_pieces_for_all_sizes(monkeypatch):
    """More tokens than requests may run, and fewer: how many rows the last layer has depends on that."""
    monkeypatch.setattr(compile_fx, "compile_fx_inner", as_lowered)
    monkeypatch.setattr(build, "compiler_for", lambda device: with_inductor)
    worker = tiny_worker(Mode.PIECEWISE, model=TWO_LAYERS, prefix_caching=False)
    max_running = worker.config.limits.max_running
    for num_tokens in (2 * max_running, max_running - 1):
        prompt = list(range(7, 7 + num_tokens))
        wanted = dense_logits(worker.model.decoder, prompt)
        assert differences(last_logits(worker, [prompt]), wanted, f"{num_tokens} tokens") == []
    assert len(worker.prefill.captured) == 2
