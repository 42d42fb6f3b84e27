"""Links of the README and of docs/ point at files and headings that exist, and every page is in the site's contents."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import playhead

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\[[^\]\[]*\]\(([^)\s]+)\)")


def prose_of(page: Path) -> str:
    """The text of a page without its code."""
    return re.sub(r"`[^`\n]+`", "", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL))


def anchors_of(page: Path) -> set[str]:
    """The headings as GitHub and mkdocs both name them: lower case, dashes for spaces, no punctuation."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    broken = []
    for link in LINK.findall(prose_of(page)):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_points_at_something(page):
    assert not broken_links(page)


def test_every_page_is_in_the_contents_of_the_site():
    listed = set(re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE))
    assert listed == {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}


def test_pages_of_the_site_link_to_nothing_outside_it():
    """GitHub would follow `../src`, and the site would not have it."""
    for page in (ROOT / "docs").rglob("*.md"):
        for link in LINK.findall(prose_of(page)):
            if "://" not in link:
                assert (page.parent / link.partition("#")[0]).resolve().is_relative_to(ROOT / "docs"), (page, link)


def test_the_reference_has_every_public_name():
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    shown = {path.rpartition(".")[2] for path in re.findall(r"^::: (\S+)$", pages, flags=re.MULTILINE)}
    assert set(playhead.__all__) - shown - {"__version__"} == {"PlayheadError"}  # among all errors, on one page
