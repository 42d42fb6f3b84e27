"""A report is one file of well-formed HTML that loads nothing, and its charts show the values."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from playhead.load.drawing import MAX_POINTS, Axis, Line, chart, scale_of, short, thin
from playhead.load.exchange import Outcome
from playhead.load.report import report
from playhead.load.results import Sample
from tests.serve.made_results import made_request, made_requests, made_result, made_run

VOID = {"meta", "line", "circle", "polyline", "br"}
SAMPLES = tuple(
    Sample(
        at_s=float(i),
        values={"running": 3.0, "waiting": 1.0, "steps": 100.0 * i, "eager_steps": 25.0 * i, "kv_held_bytes.full": 5.0},
    )
    for i in range(4)
)


class Checker(HTMLParser):
    """Every tag that opens is closed, in order; attributes and texts are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def checked(page: str) -> Checker:
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert checker.open == []
    return checker


@pytest.fixture(scope="module")
def page() -> str:
    runs = [made_run(made_requests(seed, count=60), rate=rate, samples=SAMPLES) for seed, rate in ((1, 2.0), (2, 8.0))]
    return report(made_result(*runs))


def test_a_report_parses_and_loads_nothing(page):
    found = checked(page)
    assert {"html", "table", "svg", "polyline"} <= set(found.seen)
    assert not {"script", "link", "img", "iframe", "object", "embed", "base"} & set(found.seen)
    assert not {"src", "href", "action", "onload", "style"} & {name for name, _ in found.attributes}
    assert re.findall(r"url\(|@import|//(?!127\.0\.0\.1:1)", page) == []


def test_names_are_escaped(page):
    assert "<small>" not in page
    assert "<small> & quick at http://127.0.0.1:1" in checked(page).text


def test_a_report_has_percentiles_and_every_chart(page):
    text = checked(page).text
    for words in (
        *("time to first token, ms", "inter-token latency, ms", "p50", "p99", "Rate 2", "Rate 8", "Requests served"),
        *("Throughput", "Sequences", "KV memory held", "Graph hit share", "graph hit share", "0.75"),
    ):
        assert words in text, words
    assert page.count("<figure>") == 2 + 2 * 8


def test_a_run_without_one_answer_still_has_a_report():
    refused = made_request(outcome=Outcome.REFUSED, status=429, first_ms=None, end_ms=1.0, inter_ms=None, gaps_ms=())
    text = checked(report(made_result(made_run([refused], rate=None)))).text
    assert "no data" in text
    assert "until a refusal, ms" in text


def test_a_line_goes_through_its_values():
    drawn = chart("t", Axis(label="x"), Axis(label="y"), [Line(label="a", x=[0, 10], y=[0, 5])])
    (places,) = re.findall(r'points="([^"]+)"', drawn)
    assert places == "64.0,236.0 624.0,28.0"


def test_equal_ratios_are_equal_distances_on_a_log_axis():
    scale = scale_of([1, 10, 100], Axis(label="", is_log=True), 0, 100)
    places = [scale.place(value) for value in (1, 10, 100)]
    assert places[1] - places[0] == pytest.approx(places[2] - places[1])


def test_ticks_are_round_and_inside():
    assert scale_of([0, 47], Axis(label=""), 0, 1).ticks() == [0, 10, 20, 30, 40]
    assert scale_of([0.9, 30], Axis(label="", is_log=True), 0, 1).ticks() == [1, 2, 5, 10, 20]
    assert scale_of([3, 3], Axis(label=""), 0, 1).ticks()[0] == 0


def test_a_long_line_is_thinned_and_keeps_its_end():
    line = thin(Line(label="", x=list(range(100_000)), y=[1.0] * 100_000))
    assert len(line.x) <= MAX_POINTS + 1
    assert line.x[-1] == 99_999


def test_values_that_are_no_numbers_are_left_out():
    assert thin(Line(label="", x=[1, 2, 3], y=[1.0, float("nan"), float("inf")])).x == [1]


def test_large_ticks_are_short():
    assert [short(value) for value in (0.5, 9000, 20_000, 2e6, 3e9)] == ["0.5", "9000", "20k", "2M", "3G"]
