"""Steps launched before the last one is read: the same tokens, late stops dropped, memory in order."""

from __future__ import annotations

import pytest
import torch

from playhead.engine.engine import Engine
from playhead.engine.front import RequestOptions
from playhead.errors import RequestError
from playhead.outputs import FinishReason
from playhead.sampling_params import SamplingKind
from playhead.step.sampling import SamplerRows
from playhead.testing.engine_mutants import CROWD, CROWD_ALONE, ENGINE_CHECKERS, check_schedule
from playhead.testing.mutant import Oracles
from playhead.testing.tiny_engine import LITTLE_BYTES, greedy, run_schedule, tiny_engine

PROMPT = (7, 8, 9, 10, 11)


@pytest.fixture
def engine() -> Engine:
    return tiny_engine(overlap=True)


def run_one(engine: Engine, params) -> list:
    engine.add_request("one", PROMPT, params)
    outputs = []
    while engine.has_work:
        outputs += engine.step()
    return outputs


def test_a_step_is_launched_before_the_last_one_is_read(engine):
    engine.add_request("one", PROMPT, greedy(3))
    assert engine.step() == []
    assert len(engine.worker.kv.sequences) == 1
    assert [len(output.outputs[0].token_ids) for output in engine.step()] == [1]


@pytest.mark.parametrize("overlap", [False, True])
def test_as_many_steps_are_in_flight_as_memory_is_planned_for(overlap, monkeypatch):
    engine, seen = tiny_engine(overlap=overlap), []
    collect = engine.worker.collect

    def watched(launched):
        seen.append(len(engine.worker.steps_in_flight))
        return collect(launched)

    monkeypatch.setattr(engine.worker, "collect", watched)
    run_one(engine, greedy(6))
    assert max(seen) == engine.worker.config.limits.num_steps_in_flight == 1 + overlap


def test_the_length_is_known_ahead_and_wastes_nothing(engine):
    outputs = run_one(engine, greedy(6))
    assert outputs[-1].outputs[0].finish_reason is FinishReason.LENGTH
    assert (engine.stats.num_steps, engine.stats.num_wasted_rows) == (6, 0)


def test_a_stop_that_is_seen_late_wastes_one_row_and_gives_no_token(engine):
    token = run_one(engine, greedy(4))[-1].outputs[0].token_ids[0]
    outputs = run_one(engine, greedy(9, stop_token_ids=[token]))
    assert outputs[-1].outputs[0].token_ids == [token]
    assert engine.stats.num_wasted_rows == 1


def test_an_abort_between_launch_and_reading_is_final(engine):
    engine.add_request("one", PROMPT, greedy(9))
    engine.step()
    engine.step()
    assert engine.abort("one").outputs[0].finish_reason is FinishReason.ABORT
    while engine.has_work:
        assert engine.step() == []
    assert engine.stats.num_wasted_rows == 1
    assert not engine.worker.kv.sequences


def test_a_steady_decode_fills_nothing_and_publishes_nothing(engine):
    """All a step takes from the host is its replay: no slot is written, no table changes."""
    engine.add_request("one", PROMPT, greedy(25))
    for _ in range(3):
        engine.step()
    registry, sent = engine.worker.decode.registry, []
    engine.worker.publisher.send = sent.extend
    before = registry.num_fills
    for _ in range(10):
        engine.step()
    assert (registry.num_fills, sent) == (before, [])


def test_a_graph_goes_on_only_over_slots_that_nobody_filled_since(engine):
    """Capturing fills the slots of decode with a placeholder, whichever sampling the new graph is for."""
    wanted = run_one(tiny_engine(overlap=False), greedy(20))[-1].outputs[0].token_ids
    engine.add_request("one", PROMPT, greedy(20))
    for _ in range(6):
        engine.step()
    engine.worker.decoder_for(SamplingKind.DRAWN).capture_all()
    outputs = []
    while engine.has_work:
        outputs += engine.step()
    assert outputs[-1].outputs[0].token_ids == wanted


@pytest.mark.parametrize("overlap", [True, False], ids=["overlapped", "one by one"])
def test_the_crowd_in_little_memory(overlap):
    engine = tiny_engine(overlap=overlap, kv_memory_bytes=LITTLE_BYTES)
    assert check_schedule(engine, CROWD_ALONE.compute(), CROWD) == []


@pytest.mark.parametrize("checker", [c for c in ENGINE_CHECKERS if "crowd" not in c.name], ids=lambda c: c.name)
def test_nobody_loses_anything(checker):
    assert Oracles().ask(checker).said == ""


def test_what_was_read_before_a_step_failed_is_not_given_to_a_new_request_of_that_name(engine, monkeypatch):
    engine.add_request("one", PROMPT, greedy(1))
    engine.step()
    engine.add_request("two", PROMPT, greedy(9))
    engine._read_until(0)
    with pytest.raises(RequestError, match="an id in use"):
        engine.add_request("one", PROMPT, greedy(1))
    assert [output.request_id for output in engine.take_ready()] == ["one"]
    engine.add_request("one", PROMPT, greedy(1))


def test_tables_that_do_not_fit_are_refused_to_the_request_that_wants_them(engine, monkeypatch):
    def no_memory(self):
        raise torch.OutOfMemoryError("a full GPU")

    monkeypatch.setattr(SamplerRows, "make_tables", no_memory)
    engine.add_request("plain", PROMPT, greedy(3))
    with pytest.raises(RequestError, match="no device memory"):
        engine.add_request("penalised", PROMPT, greedy(3, presence_penalty=1.0))
    assert len(run_one(engine, greedy(3))) == 6


def test_what_does_not_stream_comes_once_and_whole(engine):
    streamed, _ = run_schedule(engine)
    assert streamed["first"]
    engine.add_request("quiet", PROMPT, greedy(3), RequestOptions(streams=False))
    outputs = []
    while engine.has_work:
        outputs += engine.step()
    assert [output.outputs[0].token_ids for output in outputs] == [streamed["first"]]
