"""Decode steps whose attention leaves its output in parts, on the tape: a GPU's ops, by their references."""

from __future__ import annotations

import pytest

from playhead.kernels.attention import write_and_decode
from playhead.kernels.projection import project_normed
from playhead.step.audit import audit_worker
from playhead.testing.parts_left import as_on_a_gpu
from playhead.testing.tiny_engine import Ask, greedy, run_schedule, tiny_engine
from tests.counting import CalledOps

ALONE = (Ask(name="alone", prompt=(7, 8, 9, 10, 11), params=greedy(20)),)
PAIR = (*ALONE, Ask(name="beside", prompt=(3, 4, 5), params=greedy(6), comes=4))


@pytest.mark.parametrize("asks", [ALONE, PAIR], ids=["alone", "with another for a while"])
def test_tokens_are_those_of_attention_that_merges(asks):
    with as_on_a_gpu(0):
        wanted = run_schedule(tiny_engine(overlap=True), asks)
    with as_on_a_gpu(3):
        engine = tiny_engine(overlap=True)
        found = run_schedule(engine, asks)
    assert found == wanted
    assert any(mode.startswith("full") for mode in engine.stats.modes)


def test_a_step_of_one_request_hands_parts_to_the_product_behind_attention_and_others_do_not():
    with as_on_a_gpu(3), CalledOps() as ops:
        run_schedule(tiny_engine(overlap=False), PAIR)
    by_size = {}
    for op, args in ops.calls:
        if op is write_and_decode.overload:
            by_size.setdefault(args[0].shape[0], set()).add(args[-1])
    assert by_size[1] == {3}
    assert by_size[2] == {0}
    merged = [args[-1] for op, args in ops.calls if op is project_normed.overload]
    assert set(merged) == {0, 3}


def test_graphs_with_parts_are_clean_under_the_audit():
    with as_on_a_gpu(3):
        reports = audit_worker(tiny_engine(overlap=False).worker)
    assert all(report.ok for report in reports), "\n".join(report.text() for report in reports)
    assert {graph.bucket for report in reports for graph in report.graphs} > {1}
