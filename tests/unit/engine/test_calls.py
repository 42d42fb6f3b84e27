"""A call's requests on their way into the engine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from playhead.engine.calls import Calls
from playhead.engine.front import PromptReader, RequestOptions
from playhead.errors import RequestError
from playhead.kv.audit import audit
from playhead.structured_outputs import StructuredOutputs
from playhead.testing.tiny_engine import greedy, tiny_engine

VOCAB_SIZE = 64


def noted(engine, monkeypatch):
    """What is checked and launched from now on, in its order; a request is known by its first id."""
    events: list[int | str] = []
    check, launch = PromptReader.check, engine._launch

    def noted_check(self, prompt, params):
        events.append(prompt[0])
        return check(self, prompt, replace(params, structured_outputs=None))

    def noted_launch(*more):
        events.append("launch")
        return launch(*more)

    monkeypatch.setattr(PromptReader, "check", noted_check)
    monkeypatch.setattr(engine, "_launch", noted_launch)
    return events


def asked(*first_ids, num_tokens, params=None):
    return [(f"r{one}", [one] + [7] * (num_tokens - 1), params or greedy(2)) for one in first_ids]


def test_the_first_step_is_launched_when_the_requests_that_fill_it_are_checked(monkeypatch):
    """All are checked before the second: a mistake in the last one must not show when the others are done."""
    engine = tiny_engine(overlap=True)
    events = noted(engine, monkeypatch)
    requests = asked(1, 2, 3, 4, num_tokens=engine.worker.config.limits.chunk_tokens // 2)
    outputs = list(Calls(engine).outputs_of(requests, RequestOptions()))
    assert events[:6] == [1, 2, "launch", 3, 4, "launch"]
    assert sorted(output.request_id for output in outputs if output.finished) == ["r1", "r2", "r3", "r4"]


@pytest.mark.parametrize("why", ["steps do not overlap", "a form"])
def test_all_requests_are_checked_first_where_nothing_is_gained(why, monkeypatch):
    engine = tiny_engine(overlap=why == "a form")
    events = noted(engine, monkeypatch)
    num_tokens = engine.worker.config.limits.chunk_tokens
    form = StructuredOutputs(choice=["a"]) if why == "a form" else None
    requests = asked(1, 2, num_tokens=num_tokens)
    requests += asked(3, num_tokens=num_tokens, params=replace(greedy(2), ignore_eos=False, structured_outputs=form))
    list(Calls(engine).outputs_of(requests, RequestOptions()))
    assert events[:4] == [1, 2, 3, "launch"]


def test_a_request_that_is_refused_behind_the_first_launch_ends_its_call_and_nothing_else():
    """The call gives no output; what it had begun is given up, and the engine serves on."""
    engine = tiny_engine(overlap=True)
    calls, num_tokens = Calls(engine), engine.worker.config.limits.chunk_tokens
    wanted = [output.outputs[0].token_ids for output in calls.outputs_of(asked(5, num_tokens=3), RequestOptions())][-1]
    given = []
    with pytest.raises(RequestError, match=f"token id {VOCAB_SIZE}"):
        given += calls.outputs_of(asked(1, 2, VOCAB_SIZE, num_tokens=num_tokens), RequestOptions())
    assert given == []
    assert not calls.is_busy
    assert engine.num_requests == (0, 0)
    again = [output.outputs[0].token_ids for output in calls.outputs_of(asked(5, num_tokens=3), RequestOptions())][-1]
    assert again == wanted
    assert not engine.has_work
    assert audit(engine.worker.kv) == []


def test_requests_that_a_step_has_no_room_for_are_queued_behind_its_launch(monkeypatch):
    engine = tiny_engine(overlap=True, prefix_caching=False)
    events: list[str] = []
    submit, launch = engine.submit, engine._launch

    def noted_submit(name, *more):
        events.append(name)
        return submit(name, *more)

    def noted_launch(*more):
        events.append("launch")
        return launch(*more)

    monkeypatch.setattr(engine, "submit", noted_submit)
    monkeypatch.setattr(engine, "_launch", noted_launch)
    num_tokens = engine.worker.config.limits.chunk_tokens
    asked = [(name, [7] * num_tokens, greedy(2)) for name in ("first", "second", "third")]
    outputs = list(Calls(engine).outputs_of(asked, RequestOptions()))
    assert events[:5] == ["first", "launch", "second", "launch", "third"]
    assert sorted(output.request_id for output in outputs if output.finished) == ["first", "second", "third"]
