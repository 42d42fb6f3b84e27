"""The scripts of `bench/` that load a server: what they send, and what they call a failure."""

from __future__ import annotations

import json
from dataclasses import replace

from bench.over_http import CLIENTS, model_with_words, planned
from bench.overload import COLUMNS, row, verdicts
from bench.workload import throughput_set
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
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "config.json").write_text('{"vocab_size": 300}')
    tokenizer = tokenizer_from_directory(model_with_words(tmp_path / "from", tmp_path))
    assert [tokenizer.decode([i]) for i in (0, 7, 299)] == [" w0", " w7", " w299"]


def test_the_clients_share_the_mixed_workload():
    """Each request goes to one client, and asks for what the library is asked for."""
    prompts, out_lens = throughput_set()
    shares = [planned(share) for share in range(CLIENTS)]
    assert sorted(one.output_len for share in shares for one in share) == sorted(out_lens)
    assert shares[1][0].input_len == len(prompts[1])
    assert json.loads(shares[1][0].body)["prompt"] == prompts[1]
