"""What axe-core finds on the pages: no serious fault, in either scheme, at either width.

`make test-pages` fetches axe-core, which is not ours to ship, into `.axe`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

expect = pytest.importorskip("playwright.sync_api").expect

AXE = Path(__file__).resolve().parents[2] / ".axe" / "axe.min.js"
SEVERE = ("serious", "critical")


def faults(page) -> list[str]:
    """What axe-core calls serious or critical, with where it stands."""
    page.evaluate(AXE.read_text())
    found = page.evaluate("() => axe.run(document, {resultTypes: ['violations', 'incomplete']})")
    assert found["passes"], "axe-core looked at nothing"
    return [
        f"{one['id']}: {node['html']}"
        for one in found["violations"]
        if one["impact"] in SEVERE
        for node in one["nodes"]
    ]


@pytest.fixture(params=[("light", 1100), ("dark", 1100), ("light", 360)], ids=["light", "dark", "phone"])
def page(request, new_visit):
    if not AXE.exists():
        pytest.skip(".axe/axe.min.js is missing; `make test-pages` fetches it")
    scheme, width = request.param
    return new_visit(color_scheme=scheme, width=width, bypass_csp=True)


def test_the_chat_page_has_no_serious_fault(page):
    chat = page.go("/")
    chat.locator("#settings").evaluate("details => { details.open = true; }")
    assert faults(chat) == []
    chat.fill("#max_tokens", "4")
    chat.fill("#message", "Hello")
    chat.keyboard.press("Enter")
    expect(chat.locator(".does")).to_be_visible()
    chat.fill("#message", "whale " * 400)
    chat.keyboard.press("Enter")
    expect(chat.get_by_role("alert")).to_be_visible()
    assert faults(chat) == []
    page.errors.clear()


def test_the_graphs_page_has_no_serious_fault(page, load):
    load.begin("The whale", 60)
    graphs = page.go("/graphs")
    expect(graphs.locator(".lane canvas").first).to_be_visible()
    assert faults(graphs) == []


def test_the_question_for_a_key_has_no_serious_fault(page, served):
    page.page.goto(served.locked_url + "/")
    expect(page.page.get_by_role("dialog")).to_be_visible()
    assert faults(page.page) == []
    page.errors.clear()
