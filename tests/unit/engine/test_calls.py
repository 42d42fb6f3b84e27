"""A call's requests on their way into the engine."""

from __future__ import annotations

from playhead.engine.calls import Calls
from playhead.engine.front import RequestOptions
from playhead.testing.tiny_engine import greedy, tiny_engine


def test_requests_that_the_first_step_has_no_room_for_are_queued_behind_its_launch(monkeypatch):
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
    assert events[:4] == ["first", "launch", "second", "third"]
    assert sorted(output.request_id for output in outputs if output.finished) == ["first", "second", "third"]
