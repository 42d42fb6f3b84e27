"""The scorecard's lines become tables and plots."""

from __future__ import annotations

import json

import pytest

from bench import report, scorecard
from bench.scorecard import CELLS


def measured(model: str, cell: str, index: int, value: float) -> str:
    return json.dumps(scorecard.line(model, CELLS[cell][index], value))


LINES = [
    json.dumps({"cell": "device", "name": "a GPU"}),
    measured("gemma3-1b", "decode", 0, 2.0),
    measured("gemma3-1b", "decode", 0, 1.022),
    json.dumps({"model": "gemma3-1b", "cell": "decode", "case": "batch 8", "skipped": "no time"}),
    measured("qwen3-0.6b", "workload_a", 1, 24_900.0),
]


def test_a_table_has_a_row_for_each_model_and_the_newest_numbers():
    head, _, row = report.table("decode", report.read(LINES)).splitlines()
    assert head == "| decode, ms per step | batch 1 | batch 8 | batch 32 | batch 128 |"
    assert row == "| Gemma-3-1B | 1.02 (46%, 2.00 x vLLM) | - | - | - |"


def test_a_report_has_the_cells_that_were_measured():
    text = report.report(report.read(LINES))
    assert "24,900 (68%, 1.20 x mini-sglang)" in text
    assert "prefill" not in text


def test_every_cell_has_a_title():
    assert set(report.TITLES) == set(CELLS)


def test_a_plot_has_an_axis_for_each_model():
    pytest.importorskip("matplotlib")
    figure = report.draw(report.styled_pyplot("agg"), "decode", report.read(LINES))
    assert [axis.get_title() for axis in figure.axes] == ["Gemma-3-1B"]
    assert report.draw(report.styled_pyplot("agg"), "prefill", report.read(LINES)) is None
