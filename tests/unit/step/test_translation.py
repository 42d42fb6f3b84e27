"""The translation on the engine's own path: once per forward and window group, in every kind of graph."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from playhead.errors import StaleTranslation
from playhead.kv.plan import KVLimits
from playhead.kv.swa_pool import SWAKVPool
from playhead.llm import LLM
from playhead.models.build import spec_from_config
from playhead.models.checkpoint.dummy import dummy_decoder
from playhead.sampling_params import SamplingParams
from playhead.schedule.request import Chunk
from playhead.step.build import build_worker
from playhead.step.worker import Worker, WorkerConfig
from playhead.testing.tiny_engine import greedy, tiny_engine
from playhead.testing.tiny_worker import TINY_GEMMA3, dense_logits, last_logits, tiny_worker
from playhead.testing.translation_checkers import (
    GRAPH_MODES,
    SAME_SIZE,
    TRANSLATE,
    check_engine_publication,
    check_live_layers,
    check_nobodys_token,
    check_steps_of_one_size,
    dense_same_size,
    mapping_readers,
)
from playhead.types import Mode


def hybrid_worker(windows: tuple[int | None, ...], mode: Mode) -> Worker:
    """A tiny model with a layer of each of these windows."""
    config = {**TINY_GEMMA3, "num_hidden_layers": len(windows), "layer_types": ["sliding_attention"] * len(windows)}
    spec = spec_from_config(config)
    layers = tuple(
        replace(layer, attention=replace(layer.attention, window=window))
        for layer, window in zip(spec.layers, windows, strict=True)
    )
    decoder = dummy_decoder(replace(spec, layers=layers), dtype=torch.float32, device=torch.device("cpu"))
    limits = KVLimits(max_context_tokens=32, max_running=2, chunk_tokens=6)
    return build_worker(decoder, WorkerConfig(kv_memory_bytes=1 << 20, limits=limits, page_size=2, token_mode=mode))


@pytest.mark.parametrize("mode", GRAPH_MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize(
    ("windows", "num_groups"),
    [((4, None), 1), ((4, 4, 4, 4, 4, None), 1), ((4, 7, None, 7, 4), 2), ((4, 4), 1), ((None, None), 0)],
    ids=str,
)
def test_every_captured_graph_translates_once_per_window_group(windows, num_groups, mode):
    """However many layers; and no other op is given the mapping. A model without windows translates nothing."""
    worker = hybrid_worker(windows, mode)
    worker.capture_all()
    readers = mapping_readers(worker)
    assert {name.split(", ")[-2] for name in readers} == {"full", mode.value}
    assert all(found == [TRANSLATE] * num_groups for found in readers.values()), readers
    recordings = [part for captured in worker.prefill.captured.values() for part in captured.recordings]
    assert sum(part.log.count("playhead::translate") for part in recordings) == num_groups * len(
        worker.prefill.captured
    )


def test_layers_between_captured_segments_do_not_read_the_mapping():
    assert check_live_layers(dense_same_size()) == []


def test_steps_of_one_size_are_translated_anew():
    assert check_steps_of_one_size(dense_same_size()) == []


def test_a_token_of_nobody_is_written_nowhere():
    assert check_nobodys_token() == []


def test_a_step_on_an_unpublished_mapping_is_refused():
    assert check_engine_publication() == []


def test_the_engine_refuses_to_step_on_an_unpublished_mapping(monkeypatch):
    engine = tiny_engine(overlap=False)
    monkeypatch.setattr(SWAKVPool, "take_writes", lambda self, mapping: [])
    engine.add_request("one", (7, 8, 9, 10, 11), greedy(3))
    with pytest.raises(StaleTranslation, match="launch"):
        engine.step()


@pytest.mark.parametrize("mode", [*GRAPH_MODES, Mode.EAGER], ids=lambda mode: mode.value)
def test_two_window_groups_give_the_logits_of_dense_attention(mode):
    worker = hybrid_worker((4, 7, None, 7, 4), mode)
    for parameter in worker.model.decoder.parameters():
        parameter.mul_(8)
    seq = worker.kv.admit("request", SAME_SIZE[0])
    for end in (5, 6, 7):
        chunk = SAME_SIZE[0][seq.num_tokens : end]
        worker.kv.extend(seq, len(chunk))
        logits = worker.run([Chunk.newest(seq, chunk)]).logits_NV
        wanted = dense_logits(worker.model.decoder, SAME_SIZE[0][:end])
        torch.testing.assert_close(logits, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", [*GRAPH_MODES, Mode.EAGER], ids=lambda mode: mode.value)
def test_the_pages_of_a_prefix_hit_are_translated_in_a_row_that_never_held_them(mode):
    worker, prompt = tiny_worker(mode, page_size=2), SAME_SIZE[0]
    first = worker.kv.admit("first", prompt)
    worker.kv.extend(first, len(prompt))
    worker.run([Chunk.newest(first, prompt)])
    second = worker.kv.admit("second", prompt)
    assert (second.row != first.row, second.num_hit_tokens) == (True, 6)
    worker.kv.extend(second, 1)
    logits = worker.run([Chunk.newest(second, prompt[6:])]).logits_NV
    torch.testing.assert_close(logits, dense_logits(worker.model.decoder, prompt), rtol=1e-5, atol=1e-5)


def test_a_page_that_the_launch_exchanges_does_not_stop_an_eager_step():
    """Equal first pages in one step: the launch gives one request the other's page, and maps it for later steps."""
    worker = tiny_worker(Mode.EAGER)
    prompts = [[7, 8, 9], [7], [7, 8]]
    logits = last_logits(worker, prompts)
    for row, prompt in zip(logits, prompts, strict=True):
        torch.testing.assert_close(row, dense_logits(worker.model.decoder, prompt)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("mode", "forwards_per_step"), [("eager", 1), ("full", 0)])
def test_an_llm_begins_every_forward_once(monkeypatch, mode, forwards_per_step):
    """Eager steps begin in Python, each once. A replay runs no Python: after its capture nothing begins there."""
    with LLM("embedded", graph_mode=mode) as llm:
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
        llm.generate("Once upon a time", params)  # whatever is captured late is captured here
        begin, launch, num = SWAKVPool.begin_forward, Worker.launch, {"begun": 0, "launched": 0}

        def counted_begin(self, tokens, *, is_launched=False):
            num["begun"] += 1
            return begin(self, tokens, is_launched=is_launched)

        def counted_launch(self, chunks):
            num["launched"] += 1
            return launch(self, chunks)

        monkeypatch.setattr(SWAKVPool, "begin_forward", counted_begin)
        monkeypatch.setattr(Worker, "launch", counted_launch)
        llm.generate("Once upon a time", params)
    assert num["launched"] >= 8
    assert num["begun"] == forwards_per_step * num["launched"]
