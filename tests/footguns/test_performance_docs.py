"""The tables of docs/performance.md are what `bench.report` makes of the committed measurements."""

from __future__ import annotations

import re
from pathlib import Path

from bench.report import read, report

ROOT = Path(__file__).parents[2]


def test_the_tables_are_those_of_the_measurements_that_the_page_names():
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    named = re.findall(r"bench/results/\S+\.jsonl", page)
    assert named
    lines = (line for name in named for line in (ROOT / name).read_text(encoding="utf-8").splitlines())
    assert report(read(lines)) in page
