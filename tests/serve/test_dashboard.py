"""The dashboard asks for metrics that there are, with labels that they have."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from playhead.serve.families import FAMILIES

DASHBOARD = json.loads((Path(__file__).parents[2] / "deploy" / "grafana" / "playhead.json").read_text())
QUERIES = [
    *(target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]),
    *(one["query"]["query"] for one in DASHBOARD["templating"]["list"] if one["type"] == "query"),
]
LABELS = {series: {"model_name", "le", *family.labels} for family in FAMILIES for series in family.series}
NAME = re.compile(r"(?:vllm:|playhead_)\w+")
GROUPED = re.compile(r"by \(([^)]*)\)")


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_names_metrics_and_labels_that_exist(query):
    names = NAME.findall(query)
    assert names
    assert set(names) <= LABELS.keys()
    grouped = {label.strip() for labels in GROUPED.findall(query) for label in labels.split(",")}
    assert all(grouped <= LABELS[name] for name in names)


def test_legends_show_labels_that_the_metric_has():
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert shown <= LABELS[NAME.findall(target["expr"])[0]], panel["title"]


def test_panels_do_not_overlap_and_each_has_a_title():
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in DASHBOARD["panels"]}
    assert len(places) == len(DASHBOARD["panels"]) == len({panel["title"] for panel in DASHBOARD["panels"]})
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in DASHBOARD["panels"])


def test_what_playhead_adds_to_vllms_metrics_is_on_it():
    shown = {name for query in QUERIES for name in NAME.findall(query)}
    for name in ("playhead_kv_group_usage", "playhead_graph_replays_total", "playhead_eager_steps_total"):
        assert name in shown
