"""What the graphs page is told, as JSON."""

from __future__ import annotations

import base64
import json

import msgspec

from playhead.engine.snapshot import take_snapshot
from playhead.serve.pages import MAX_STEPS_SENT, GraphData, ModelShown, drawable
from playhead.testing.tiny_engine import greedy, tiny_engine

MODEL = ModelShown(name="tiny", device="cpu", dtype="float32", max_model_len=32)


def data_of(num_requests: int) -> tuple[GraphData, dict[str, object]]:
    engine = tiny_engine(overlap=False)
    for number in range(num_requests):
        engine.add_request(f"secret name {number}", (1, 2, 3), greedy(24))
        while engine.has_work:
            engine.step()
    engine.add_request("secret name", (4, 5, 6), greedy(8))
    engine.step()
    data = GraphData(model=MODEL, snapshot=drawable(take_snapshot(engine)))
    return data, json.loads(msgspec.json.encode(data))


def test_the_map_arrives_as_it_was_taken():
    data, told = data_of(1)
    for group, told_group in zip(data.snapshot.groups, told["snapshot"]["groups"], strict=True):
        assert base64.b64decode(told_group["page_states"]) == group.page_states
        assert 4 in group.page_states


def test_the_newest_steps_are_sent_and_no_more():
    data, told = data_of(12)
    numbers = [step["number"] for step in told["snapshot"]["steps"]]
    last = data.snapshot.stats.num_steps
    assert last > MAX_STEPS_SENT
    assert numbers == list(range(last - MAX_STEPS_SENT + 1, last + 1))


def test_nothing_of_a_request_is_sent_but_its_size():
    _, told = data_of(1)
    (request,) = told["snapshot"]["requests"]
    assert request.keys() == {"row", "num_tokens", "num_cached_tokens", "num_pages", "first_pages"}
    assert "secret" not in json.dumps(told)
