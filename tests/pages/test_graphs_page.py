"""The graphs page in a browser: what it shows moves with the engine, and stops when nobody looks."""

from __future__ import annotations

import re

import pytest

from playhead.engine.snapshot import take_snapshot

expect = pytest.importorskip("playwright.sync_api").expect

PAST_WINDOW = 200  # tokens after which a window of 128 has slid by several pages


def counter(page, name: str):
    return page.locator("#counters div").filter(has=page.get_by_text(name, exact=True)).locator("dd span")


def number(text: str) -> float:
    return float(text.replace(",", "").rstrip("%"))


def data_calls(page) -> list[str]:
    """The paths of the page's calls for data, those to come."""
    calls: list[str] = []
    page.on("request", lambda one: calls.append(one.url) if "/graphs/data/" in one.url else None)
    return calls


def test_counters_and_maps_move_while_a_request_runs(visit, served, load):
    page = visit.go("/graphs")
    expect(page.locator("#live")).to_have_text("live")
    before = number(counter(page, "Generated").inner_text())
    full = page.get_by_role("img", name="Map of the pages of full")
    idle = full.screenshot()
    load.begin("The whale", PAST_WINDOW)
    expect(counter(page, "Running")).to_have_text("1")
    expect(full).to_have_attribute("aria-label", re.compile(r": [1-9]\d* held"))
    assert full.screenshot() != idle
    load.wait()
    expect(counter(page, "Running")).to_have_text("0")
    expect(counter(page, "Generated")).to_have_text(f"{before + PAST_WINDOW:,.0f}")
    now = served.on_loop(served.backend.snapshot())
    assert number(counter(page, "Steps").inner_text()) == now.stats.num_steps


def test_a_lane_shows_its_window_slide(visit, load):
    """The full group keeps a request's first page to the end; the window group lets it go."""
    page = visit.go("/graphs")
    load.begin("The whale", PAST_WINDOW)
    lane = page.locator(".lane canvas:visible")
    expect(lane).to_have_attribute("aria-label", re.compile(r"full keeps pages 0 to \d+; window128 keeps pages 0 to"))
    expect(lane).to_have_attribute("aria-label", re.compile(r"full keeps pages 0 to \d+; window128 keeps pages [1-9]"))
    load.wait()
    expect(page.get_by_text("No request runs now.")).to_be_visible()


def test_the_tables_are_the_engines_graphs(visit, served, load):
    load.begin("It is a truth", 8)
    load.wait()
    page = visit.go("/graphs")
    now = take_snapshot(served.backend.engine)
    assert now.graphs
    for runner in now.runners:
        region = page.get_by_role("region", name=f"Graphs of {runner.name}")
        told = [
            (int(row.locator("th").inner_text()), number(row.locator("td").first.inner_text()))
            for row in region.locator("tbody tr").all()
        ]
        assert told == [(one.bucket, one.num_replays) for one in now.graphs if one.runner == runner.name]
    reasons = page.locator("#runners .said").all_inner_texts()
    for runner, text in zip(now.runners, reasons, strict=True):
        for reason, count in runner.reasons.items():
            assert f"{reason} ({count:,})" in text


def test_the_arrow_keys_tell_one_step_after_the_other(visit, load):
    load.begin("It is a truth", 4)
    load.wait()
    page = visit.go("/graphs")
    expect(page.locator("#step-said")).to_contain_text("median device")
    page.locator("#steps").focus()
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#step-said")).to_contain_text(re.compile(r"^Step [\d,]+: "))
    newest = page.locator("#step-said").inner_text()
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#step-said")).not_to_have_text(newest)
    page.keyboard.press("ArrowRight")
    expect(page.locator("#step-said")).to_have_text(newest)


def test_the_page_asks_for_new_steps_alone_and_not_while_paused(visit, served, load):
    load.begin("It is a truth", 4)
    load.wait()
    visit.page.clock.install()
    calls = data_calls(visit.page)
    page = visit.go("/graphs")
    expect(page.locator("#live")).to_have_text("live")
    assert calls[0].endswith("/graphs/data/0")
    with page.expect_response("**/graphs/data/*"):
        page.clock.run_for(600)
    num_steps = served.on_loop(served.backend.snapshot()).stats.num_steps
    assert calls[-1].endswith(f"/graphs/data/{num_steps}")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#live")).to_have_text("paused")
    num_calls = len(calls)
    page.clock.run_for(60_000)
    assert len(calls) == num_calls
    with page.expect_response("**/graphs/data/*"):
        page.get_by_role("button", name="Go on").click()
        page.clock.run_for(600)


def test_the_page_rests_while_its_tab_is_hidden(new_visit):
    visit = new_visit(bypass_csp=True)
    page = visit.page
    page.clock.install()
    page.add_init_script("Object.defineProperty(document, 'hidden', {get: () => globalThis.isAway === true})")
    calls = data_calls(page)
    visit.go("/graphs")
    expect(page.locator("#live")).to_have_text("live")
    page.evaluate("() => { globalThis.isAway = true; document.dispatchEvent(new Event('visibilitychange')); }")
    num_calls = len(calls)
    page.clock.run_for(60_000)
    assert len(calls) == num_calls
    with page.expect_response("**/graphs/data/*"):
        page.evaluate("() => { globalThis.isAway = false; document.dispatchEvent(new Event('visibilitychange')); }")
        page.clock.run_for(600)


def test_a_lost_server_is_told_and_found_again(visit):
    page = visit.go("/graphs")
    expect(page.locator("#live")).to_have_text("live")
    page.route("**/graphs/data/*", lambda route: route.abort())
    expect(page.get_by_role("alert")).to_contain_text("The server cannot be reached.")
    expect(page.locator("#live")).to_have_text("no answer")
    page.unroute("**/graphs/data/*")
    expect(page.locator("#live")).to_have_text("live")
    expect(page.get_by_role("alert")).not_to_be_visible()
    visit.errors.clear()  # the browser's own words on the lost calls


def test_a_phone_shows_the_whole_width(new_visit, load):
    page = new_visit(width=360, height=640, bypass_csp=True).go("/graphs")
    load.begin("The whale", 16)
    load.wait()
    expect(page.locator("#runners table").first).to_be_visible()
    assert page.locator("html").evaluate("html => html.scrollWidth") == 360
