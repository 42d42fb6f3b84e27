"""Figures are those that numpy has for the same values, and a file gives back what was written."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from playhead.errors import ConfigError
from playhead.load.exchange import Exchange, Outcome, PlannedRequest
from playhead.load.figures import Slo, Window, answered, figures_of, per_second, spread, token_times, window_of
from playhead.load.results import MAX_KEPT_GAPS, read_results, thinned
from tests.serve.made_results import made_request, made_requests, made_result, made_run


def test_percentiles_are_numpys():
    values = np.random.default_rng(0).lognormal(0, 1, 999).tolist()
    found = spread(values)
    assert found["mean"] == pytest.approx(np.mean(values))
    assert found["max"] == max(values)
    assert [found[f"p{p}"] for p in (50, 90, 95, 99)] == pytest.approx(np.percentile(values, (50, 90, 95, 99)))
    assert spread([]) == {}


def test_an_exchange_becomes_milliseconds_from_when_it_was_sent():
    exchange = Exchange(PlannedRequest(at_s=2.0, body=b"", input_len=7, output_len=3))
    exchange.sent_s, exchange.status, exchange.outcome = 102.5, 200, Outcome.FINISHED
    for text, now_s in (("a", 103.0), ("b", 103.1), ("c", 103.3)):
        exchange._token(text, now_s)
    exchange.num_tokens, exchange.end_s = 3, 103.4
    one = answered(exchange, 100.0)
    assert one.lag_ms == pytest.approx(500)
    assert (one.first_ms, one.end_ms, one.inter_ms) == pytest.approx((500, 900, 150))
    assert one.gaps_ms == pytest.approx((100, 200))
    assert token_times([one]) == pytest.approx([3.0, 3.1, 3.3])


def test_what_did_not_happen_has_no_time():
    one = answered(Exchange(PlannedRequest(at_s=0.0, body=b"", input_len=1, output_len=1)), 0.0)
    assert (one.first_ms, one.end_ms, one.inter_ms) == (None, None, None)


def test_throughput_counts_tokens_in_the_window_and_requests_that_finished():
    requests = [
        made_request(at_s=0.0, is_warm_up=True),
        made_request(at_s=1.0),
        made_request(
            at_s=2.0, outcome=Outcome.REFUSED, status=429, num_tokens=0, first_ms=None, gaps_ms=(), end_ms=4.0
        ),
        made_request(at_s=2.99),
    ]
    figures = figures_of(requests, Window(start_s=1.0, end_s=3.0), Slo(first_ms=60, inter_ms=30))
    assert figures["requests"] == 3
    assert figures["outcomes"] == {"finished": 2, "refused": 1}
    assert figures["statuses"] == {"200": 2, "429": 1}
    assert figures["requests_per_s"] == figures["goodput_requests_per_s"] == 0.5
    assert figures["good_share"] == pytest.approx(2 / 3)
    assert figures["output_tokens_per_s"] == pytest.approx(3 / 2)
    assert figures["refusal_ms"]["max"] == 4.0
    assert figures["cached_share"] == pytest.approx(1 / 4)


@pytest.mark.parametrize(
    ("change", "is_good"),
    [
        ({}, True),
        ({"first_ms": 60.1}, False),
        ({"inter_ms": 30.1}, False),
        ({"outcome": Outcome.FAILED}, False),
        ({"inter_ms": None}, True),
    ],
)
def test_goodput_has_requests_that_met_every_limit(change, is_good):
    assert made_request(**change).is_good(Slo(first_ms=60, inter_ms=30)) is is_good


def test_an_event_of_several_tokens_counts_all_of_them():
    figures = figures_of([made_request(num_tokens=9)], Window(start_s=0, end_s=1), Slo())
    assert figures["output_tokens_per_s"] == pytest.approx(9)


def test_a_window_is_the_duration_or_ends_with_the_last_answer():
    requests = [made_request(at_s=0.5, is_warm_up=True), made_request(at_s=2.0), made_request(at_s=3.0, end_ms=1500.0)]
    assert window_of(requests, warmup_s=1.0, duration_s=5.0) == Window(start_s=1.0, end_s=6.0)
    assert window_of(requests, warmup_s=1.0, duration_s=None) == Window(start_s=2.0, end_s=4.5)


def test_events_per_second_keep_their_number():
    centres, rates = per_second(np.array([0.1, 0.2, 1.9]), Window(start_s=0, end_s=2), 4)
    assert centres.tolist() == [0.25, 0.75, 1.25, 1.75]
    assert (rates * 0.5).tolist() == [2, 0, 0, 1]


def test_a_file_gives_back_what_was_written(tmp_path):
    result = made_result(
        made_run(made_requests(1, count=5)), made_run(made_requests(2, count=5), rate=None), rate="inf"
    )
    result.write(tmp_path / "a.json")
    again = read_results(tmp_path / "a.json")
    assert again.runs[0].requests == result.runs[0].requests
    assert (again.runs[1].rate, again.slo, again.model) == (None, result.slo, result.model)
    assert again.spec["rate"] == [None]


def test_a_large_run_keeps_the_gaps_of_some_requests_and_the_means_of_all():
    many = [made_request(gaps_ms=(1.0,) * 1000) for _ in range(3 * MAX_KEPT_GAPS // 1000)]
    kept = thinned(many)
    assert sum(len(one.gaps_ms or ()) for one in kept) == MAX_KEPT_GAPS
    assert [replace(one, gaps_ms=None) for one in kept] == [replace(one, gaps_ms=None) for one in many]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("not json", "found no JSON"),
        ("[]", "another format"),
        (json.dumps({"format": "playhead bench serve 1"}), "a field is missing"),
    ],
)
def test_a_file_that_is_no_result_is_refused(tmp_path, text, why):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=why):
        read_results(path)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_results(tmp_path / "none.json")
