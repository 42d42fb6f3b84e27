"""A comparison calls a change what is one, and noise what is noise."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from playhead.load.compare import Compared, Verdict, blocks_of, compare, differing, drawn_percentile
from playhead.load.exchange import Outcome
from tests.serve.made_results import made_request, made_requests, made_result, made_run


def verdicts(first: list, second: list, **options: float) -> dict[str, Compared]:
    ((_, rows),) = compare(made_result(made_run(first)), made_result(made_run(second)), **options)
    return {row.name: row for row in rows}


def test_a_server_that_is_half_as_fast_is_worse_by_that_ratio():
    found = verdicts(made_requests(1), made_requests(2, slow=2.0))
    for name in ("first token p50, ms", "inter token p50, ms", "inter token p99, ms", "whole p50, ms"):
        assert found[name].verdict is Verdict.WORSE, name
        assert found[name].ratio == pytest.approx(2, rel=0.15)
        assert found[name].low < 2 < found[name].high


def test_a_server_that_is_faster_is_better():
    found = verdicts(made_requests(1), made_requests(2, slow=0.5, rate=40.0))
    assert found["first token p50, ms"].verdict is Verdict.BETTER
    assert found["output tokens/s"].verdict is Verdict.BETTER
    assert found["requests/s"].verdict is Verdict.BETTER


def test_the_same_server_twice_is_hardly_ever_called_changed():
    """Eight pairs of runs that differ by their draws alone, six latencies each."""
    counts: Counter[Verdict] = Counter()
    for seed in range(8):
        found = verdicts(made_requests(seed), made_requests(1000 + seed))
        counts.update(row.verdict for name, row in found.items() if name.endswith("ms"))
    assert counts.total() == 48
    assert counts[Verdict.WORSE] + counts[Verdict.BETTER] <= 3
    assert counts[Verdict.SAME] >= 8


def test_the_same_results_are_the_same():
    found = verdicts(made_requests(1, count=2000), made_requests(1, count=2000))
    assert found["inter token p50, ms"].verdict is Verdict.SAME
    assert {row.ratio for row in found.values()} == {1.0}


def test_a_change_below_the_threshold_is_none():
    assert (
        verdicts(made_requests(1, count=2000), made_requests(1, count=2000, slow=1.02), threshold=0.1)[
            "inter token p50, ms"
        ].verdict
        is Verdict.SAME
    )


def test_a_few_requests_are_too_little():
    found = verdicts(made_requests(1, count=10), made_requests(2, count=10, slow=3.0))
    assert found["first token p50, ms"].verdict is Verdict.TOO_LITTLE


def test_neighbours_that_wait_together_widen_the_interval():
    """Half of the run was slow: its requests are many, and still say little of the next run."""
    calm = verdicts(made_requests(1), made_requests(2))["first token p50, ms"]
    first, slow = made_requests(1), made_requests(2, slow=3.0)
    mixed = verdicts(first, [*made_requests(2)[:200], *slow[200:]])["first token p50, ms"]
    assert mixed.high - mixed.low > 3 * (calm.high - calm.low)


def test_requests_that_did_not_finish_are_left_out():
    bad = [made_request(outcome=Outcome.FAILED, at_s=float(i)) for i in range(50)]
    ((_, rows),) = compare(made_result(made_run(bad)), made_result(made_run(made_requests(1))))
    assert [row for row in rows if row.name.startswith("first token")] == []


def test_a_drawn_percentile_is_near_the_one_of_all_values():
    values = np.random.default_rng(1).lognormal(3, 1, (4000, 1))
    draws = drawn_percentile(blocks_of(values.tolist()), 90, np.random.default_rng(2))
    assert np.median(draws) == pytest.approx(np.percentile(values, 90), rel=0.02)


def test_runs_are_matched_by_their_rates():
    first = made_result(*(made_run(made_requests(1, count=50), rate=rate) for rate in (1.0, 2.0, None)))
    second = made_result(*(made_run(made_requests(1, count=50), rate=rate) for rate in (None, 2.0, 8.0)))
    assert [title for title, _ in compare(first, second)] == ["rate 2", "rate inf"]


def test_settings_that_differ_are_named():
    run = made_run(made_requests(1, count=5))
    assert differing(made_result(run, seed=1, input_len=9), made_result(run, seed=2, rate="3")) == ["input_len", "seed"]
