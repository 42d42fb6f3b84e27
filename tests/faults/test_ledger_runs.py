"""The ledger in a running engine: an account that is corrupted costs the requests it touches, and nobody else."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from playhead.engine.engine import Engine
from playhead.errors import LedgerError, PagesLost
from playhead.kv import ledger
from playhead.kv.ledger import MIN_BUSY_STEPS, REST_PER_AUDIT, KVWatch, Ledger
from playhead.llm import LLM
from playhead.outputs import FinishReason, RequestOutput
from playhead.sampling_params import SamplingParams
from playhead.testing.fault_runs import leftovers
from playhead.testing.tiny_engine import LIMITS, Ask, drawn, greedy, tiny_engine, tokens_alone

ASKS = (
    Ask(name="victim", prompt=tuple(range(20, 31)), params=greedy(14)),
    Ask(name="neighbour", prompt=(40, 41, 42, 43, 44), params=drawn(14, seed=2)),
    Ask(name="third", prompt=(50, 51, 52), params=greedy(14)),
)
CORRUPTED_AFTER = 5  # steps


@pytest.fixture(scope="module")
def wanted():
    return tokens_alone(ASKS)


def double_free(engine: Engine) -> None:
    """A page goes back while its sequence has it; the next who needs one gets it too."""
    kv = engine.worker.kv
    kv.allocator.groups[0].give_back([kv.sequences["victim"].pages[-1]])


def dropped_twice(engine: Engine) -> None:
    """The page's holder is counted off, and then off again at the end."""
    kv = engine.worker.kv
    kv.allocator.drop([kv.sequences["victim"].pages[0]])
    kv.allocator.drop([kv.sequences["victim"].pages[0]])


def leak(engine: Engine) -> None:
    engine.worker.kv.allocator.groups[1].take(1)


def wrong_mapping(engine: Engine) -> None:
    """The victim's newest full page leads to another window page than its row shows."""
    kv = engine.worker.kv
    mapping, page = kv.allocator.mapping, kv.sequences["victim"].pages[-1]
    mapping._window_of[0][page] = mapping._window_of[0][page] % 5 + 1


def wrong_row(engine: Engine) -> None:
    kv = engine.worker.kv
    seq = kv.sequences["victim"]
    kv.rows.tables[0][seq.row, 0] = seq.pages[-1]


def lost_row(engine: Engine) -> None:
    engine.worker.kv.rows.take()


CORRUPTIONS = {one.__name__: one for one in (double_free, dropped_twice, leak, wrong_mapping, wrong_row, lost_row)}
TOUCHES_NOBODY = {"leak", "lost_row"}


def run(engine: Engine, corrupt) -> dict[str, RequestOutput]:
    finished: dict[str, RequestOutput] = {}
    for ask in ASKS:
        engine.add_request(ask.name, ask.prompt, ask.params)
    for number in range(200):
        if number == CORRUPTED_AFTER:
            corrupt(engine)
        finished |= {output.request_id: output for output in engine.step() if output.finished}
        if not engine.has_work:
            break
    return finished


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("name", list(CORRUPTIONS))
def test_a_corrupted_account_ends_who_touches_it_and_nobody_else(name, overlap, wanted, monkeypatch):
    engine = tiny_engine(overlap=overlap, strict_ledger=False, limits=replace(LIMITS, max_running=4))
    monkeypatch.setattr(engine._watch, "_every_steps", 1)
    finished = run(engine, CORRUPTIONS[name])
    failed = {request for request, output in finished.items() if output.error is not None}
    assert "victim" in failed or name in TOUCHES_NOBODY
    assert len(failed) <= 2, "a stranger's page in the victim's row costs its owner too"
    for request, output in finished.items():
        tokens = output.outputs[0].token_ids
        if output.error is None:
            assert tokens == wanted[request]
        else:
            assert isinstance(output.error, PagesLost)
            assert output.outputs[0].finish_reason is FinishReason.ERROR
            assert tokens == wanted[request][: len(tokens)]
    assert set(finished) == set(wanted)
    assert engine.stats.num_violations > 0
    assert leftovers(engine) == []
    again = run(engine, lambda engine: None)
    assert {request: output.outputs[0].token_ids for request, output in again.items()} == wanted


def test_counts_alone_notice_a_leak_in_the_step_it_happens(wanted):
    """Without a full audit: a page that left the free list and is in no other state."""
    engine = tiny_engine(overlap=False, strict_ledger=False)
    engine.add_request("r", ASKS[0].prompt, greedy(4))
    engine.step()
    leak(engine)
    engine.step()
    assert engine.stats.num_violations == 1
    assert engine.worker.kv.allocator.groups[1].num_quarantined == 1


def test_audits_take_a_hundredth_of_the_time_however_short_the_steps_are(monkeypatch):
    engine, now_s, audits = tiny_engine(overlap=False, strict_ledger=False), [0.0], []

    def one_second(cache):
        now_s[0] += 1.0
        audits.append(now_s[0])
        return []

    monkeypatch.setattr(ledger, "audit", one_second)
    watch = KVWatch(engine.worker.kv, every_steps=None, clock=lambda: now_s[0])
    for _ in range(10_000):
        now_s[0] += 0.1
        watch.look(is_idle=False)
    assert audits[0] == pytest.approx(0.1 * MIN_BUSY_STEPS + 1)
    assert len(audits) == pytest.approx(now_s[0] / (1 + REST_PER_AUDIT), abs=1)


def test_an_idle_engine_is_audited_sooner_than_a_busy_one():
    engine = tiny_engine(overlap=False, strict_ledger=False)
    watch = KVWatch(engine.worker.kv, every_steps=None)
    engine.worker.kv.rows.tables[0][3, 5] = 9  # a row that nobody has: no count differs
    assert [bool(watch.look(is_idle=is_idle)) for is_idle in (False, True)] == [False, True]


def test_every_so_many_steps_everything_is_recounted():
    engine = tiny_engine(overlap=False, strict_ledger=False)
    watch = KVWatch(engine.worker.kv, every_steps=3)
    engine.worker.kv.rows.tables[0][3, 5] = 9
    assert [bool(watch.look(is_idle=False)) for _ in range(3)] == [False, False, True]


def test_a_violation_is_logged_once_per_kind(caplog):
    engine = tiny_engine(overlap=False, strict_ledger=False)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            engine.add_request("r", ASKS[0].prompt, greedy(4))
            engine.step()
            leak(engine)  # counts differ at once
            while engine.has_work:
                engine.step()
    assert engine.stats.num_violations == 3
    assert len(caplog.records) == 1
    assert "leak" in caplog.text


def test_a_strict_engine_raises():
    engine = tiny_engine(overlap=False, strict_ledger=True)
    engine.add_request("r", ASKS[0].prompt, greedy(4))
    engine.step()
    leak(engine)
    with pytest.raises(LedgerError):
        engine.step()


@pytest.mark.parametrize(
    ("setting", "variable", "is_strict"), [(None, "", False), (None, "1", True), (False, "1", False)]
)
def test_strictness_comes_from_the_setting_and_else_from_the_environment(setting, variable, is_strict, monkeypatch):
    monkeypatch.setenv("PLAYHEAD_STRICT_LEDGER", variable)
    with LLM("embedded", max_model_len=64, max_num_seqs=2, graph_mode="eager", strict_ledger=setting) as llm:
        assert llm.config.strict_ledger is is_strict
        assert llm.engine.worker.kv.violations.strict is is_strict


def test_a_user_can_print_the_account():
    with LLM("embedded", max_model_len=64, max_num_seqs=2, graph_mode="eager", strict_ledger=False) as llm:
        llm.generate("The whale", SamplingParams(max_tokens=4, seed=1))
        leak(llm.engine)
        output = llm.generate("The whale", SamplingParams(max_tokens=4, seed=1))[0]
        assert output.error is None
        assert "1 x leak" in llm.kv_report()
        assert llm.stats.num_violations == 1
        assert Ledger(llm.engine.worker.kv).audit() == []
