"""A browser and a server for the tests that look at pages.

    PLAYHEAD_PAGES=1 python -m pytest tests/pages

The tests of pages as files need neither, and are in the plain suite. Playwright's loop counts as a running event loop
of this thread, so the browser lives no longer than the tests of one file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.pages.browsing import Load, Visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext

    from tests.serve.running import Running

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = ["--no-sandbox", "--disable-dev-shm-usage"]
PATIENCE_MS = 120_000
"""A page that never does what is awaited fails; how long it takes on a busy machine does not matter."""


def why_not() -> str | None:
    """Why there is no browser to look with, or None."""
    if not os.environ.get("PLAYHEAD_PAGES"):
        return "PLAYHEAD_PAGES is not set; `make test-pages` looks at the pages in a browser"
    if not CHROMIUM.exists():
        return f"{CHROMIUM} is missing; `apt-get install --no-install-recommends chromium` brings it"
    return None


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        yield made
        made.close()


@pytest.fixture(scope="module")
def served(browser: Browser) -> Iterator[Running]:
    """The server behind the pages, with the embedded model."""
    from tests.serve.running import running

    with running() as made:
        yield made


@pytest.fixture
def new_visit(browser: Browser, served: Running) -> Iterator[Any]:
    """Makes visits. At the end no console may have said anything that the test does not know of."""
    contexts: list[BrowserContext] = []
    visits: list[Visit] = []

    def make(*, url: str | None = None, width: int = 1100, height: int = 740, **options: Any) -> Visit:
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        page, errors = context.new_page(), []
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        visits.append(Visit(page=page, url=url or served.url, errors=errors))
        return visits[-1]

    yield make
    for context in contexts:
        context.close()
    assert [error for visit in visits for error in visit.errors] == []


@pytest.fixture
def visit(new_visit: Any) -> Visit:
    made: Visit = new_visit()
    return made


@pytest.fixture
def load(served: Running) -> Iterator[Load]:
    made = Load(served.url)
    yield made
    made.wait()
