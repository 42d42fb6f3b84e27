"""What the pages of `tools.record_pages` show is what their code and commands print.

`python -m tools.record_pages --update` writes it anew.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.record_pages import PAGES, recorded, world

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("name", PAGES)
def test_the_page_shows_what_its_commands_print(name, monkeypatch):
    monkeypatch.chdir(DOCS.parent)
    for variable in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    page = (DOCS / f"{name}.md").read_text()
    with world() as here:
        assert recorded(page, here) == page
