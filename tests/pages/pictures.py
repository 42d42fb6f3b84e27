"""Pictures of the pages for the documents: `python -m tests.pages.pictures` writes docs/pictures."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.pages.browsing import Load
from tests.pages.conftest import CHROMIUM, FLAGS, PATIENCE_MS
from tests.serve.running import ENGINE, running

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "pictures"
ENGINE = replace(ENGINE, max_model_len=512, max_num_seqs=8, kv_memory_bytes=6 << 20)


def window(browser: Browser, scheme: str, width: int, height: int) -> Page:
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": height})
    context.set_default_timeout(PATIENCE_MS)
    return context.new_page()


def chat(page: Page, url: str, path: Path) -> None:
    """Two turns, the second one on its way."""
    page.goto(url)
    expect(page.locator("#model")).not_to_be_empty()
    page.locator("#settings").evaluate("details => { details.dataset.was = details.open; details.open = true; }")
    page.fill("#max_tokens", "60")
    page.fill("#seed", "4")
    page.fill("#temperature", "0.6")
    page.locator("#settings").evaluate("details => { details.open = details.dataset.was === 'true'; }")
    for number, text in enumerate(("It is a truth universally acknowledged, that", "And then?")):
        page.fill("#message", text)
        page.keyboard.press("Enter")
        answer = page.locator(".turn.assistant").nth(number)
        if number == 0:
            expect(answer.locator(".does")).to_be_visible()
        else:
            expect(answer.locator(".text")).to_contain_text(re.compile(".{20}", re.DOTALL))
    page.screenshot(path=path)
    page.keyboard.press("Escape")


def graphs(page: Page, url: str, path: Path) -> None:
    """Requests of several lengths, the longest with windows that have slid."""
    load = Load(url)
    page.goto(f"{url}/graphs")
    for number in range(5):
        load.begin("The whale was seen again, and all hands went on deck. " * (number + 1), 300)
    page.goto(f"{url}/graphs")
    expect(page.locator(".lane canvas").first).to_have_attribute(
        "aria-label", re.compile(r"window128 keeps pages [6-9]")
    )
    page.screenshot(path=path, full_page=path.name == "graphs.png")
    load.wait()


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    expect.set_options(timeout=PATIENCE_MS)
    with running(ENGINE) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        chat(window(browser, "light", 1000, 640), server.url, FOLDER / "chat.png")
        chat(window(browser, "dark", 360, 640), server.url, FOLDER / "chat-phone.png")
        graphs(window(browser, "light", 1000, 700), server.url, FOLDER / "graphs.png")
        graphs(window(browser, "dark", 1000, 760), server.url, FOLDER / "graphs-dark.png")
        browser.close()


if __name__ == "__main__":
    main()
