"""The scripts of `bench/` that load a server: what they send, and what they call a failure."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace

import pytest

from bench.http import make_tokenizer, planned, requests_of
from bench.overload import COLUMNS, row, verdicts
from playhead.load.exchange import Outcome
from playhead.models.text.tokenizer import tokenizer_from_directory
from tests.serve.made_results import made_request, made_requests, made_run


def refused(end_ms: float) -> object:
    facts = {"num_tokens": 0, "first_ms": None, "inter_ms": None, "gaps_ms": ()}
    return made_request(outcome=Outcome.REFUSED, status=429, end_ms=end_ms, at_s=1.0, **facts)


def said(over: list, *, is_alive: bool = True) -> list[str]:
    peak = made_run(made_requests(1, count=200))
    return [line.partition(":")[0] for line in verdicts([peak], made_run(over), is_alive=is_alive)]


def test_an_overload_is_borne_if_the_server_lives_refuses_at_once_and_works_on():
    busy = made_requests(2, count=200)
    assert said([*busy, *(refused(4.0) for _ in range(50))]) == ["ok", "ok", "ok"]
    assert said([*busy, *(refused(400.0) for _ in range(50))]) == ["ok", "FAILED", "ok"]
    assert said(busy) == ["ok", "FAILED", "ok"]
    half = [one if i % 2 else replace(one, outcome=Outcome.FAILED) for i, one in enumerate(busy)]
    assert said([*half, refused(4.0)], is_alive=False) == ["FAILED", "ok", "FAILED"]


def test_a_row_has_a_cell_for_each_column():
    assert row("x", made_run([*made_requests(1, count=5), refused(3.0)])).count(" | ") == len(COLUMNS) - 1


def test_a_made_up_tokenizer_has_a_text_for_every_id(tmp_path):
    make_tokenizer(tmp_path, 300)
    tokenizer = tokenizer_from_directory(tmp_path)
    assert [tokenizer.decode([i]) for i in (0, 7, 299)] == [" w0", " w7", " w299"]


@pytest.mark.parametrize("shrink", [1, 8])
def test_the_mixed_workload_keeps_its_shape_when_it_is_shrunk(shrink):
    whole, outs = requests_of(Namespace(streams=6, vocab=120_000, shrink=1), "t")
    small, fewer = requests_of(Namespace(streams=6, vocab=500, shrink=shrink), "t")
    assert [len(one) for one in small] == [len(one) // shrink for one in whole]
    assert fewer == [n // shrink for n in outs]
    assert max(max(one) for one in small) < 500
    assert planned("m", small[0], fewer[0]).output_len == fewer[0]
