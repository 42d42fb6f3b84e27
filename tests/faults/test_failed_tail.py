"""A step in two parts whose second part fails: what it would have computed is in no prefix."""

from __future__ import annotations

import pytest

from playhead.engine.config import EngineConfig
from playhead.engine.engine import Engine
from playhead.models.text.ids_only import IdsOnlyTokenizer
from playhead.step.masks import Tail
from playhead.testing.fault_runs import leftovers
from playhead.testing.structured import checked_ask, formed
from playhead.testing.tiny_engine import Ask, run_asks
from playhead.testing.tiny_worker import tiny_worker
from playhead.types import Mode


def test_pages_of_an_eager_step_whose_tail_failed_are_not_hit(monkeypatch):
    """An eager step runs whole in its tail, when the prefix cache has been told of its pages."""
    ask = Ask(name="r", prompt=(21,), params=formed(8, regex="[a-f]{3}-x:q,z"))
    engine = Engine(tiny_worker(Mode.EAGER), IdsOnlyTokenizer(), config=EngineConfig())
    wanted, _ = run_asks(engine, [ask], check=checked_ask)
    engine.reset_prefix_cache()
    launch = Tail.launch

    def fails(self: Tail) -> None:
        monkeypatch.setattr(Tail, "launch", launch)
        raise MemoryError("no room")

    monkeypatch.setattr(Tail, "launch", fails)
    engine.submit(ask.name, checked_ask(engine, ask))
    with pytest.raises(MemoryError, match="no room"):
        engine.step()
    assert list(engine.worker.kv.prefix.nodes()) == []
    outputs = []
    while engine.has_work:
        outputs += engine.step()
    assert outputs[-1].outputs[0].token_ids == wanted["r"].outputs[0].token_ids
    assert leftovers(engine) == []
