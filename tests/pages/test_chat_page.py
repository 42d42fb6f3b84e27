"""The chat page in a browser: what a person types, sees and changes."""

from __future__ import annotations

import json
import re

import pytest

from tests.pages.browsing import ask

expect = pytest.importorskip("playwright.sync_api").expect

LONG = 200  # tokens of an answer that is stopped before its end


def send(page, text: str) -> None:
    page.fill("#message", text)
    page.keyboard.press("Enter")


def last_answer(page):
    return page.locator(".turn.assistant").last


def wait_for_end(page):
    """The last answer, complete."""
    answer = last_answer(page)
    expect(answer.locator(".does")).to_be_visible()
    return answer


def test_an_answer_streams_and_ends_as_the_api_says(visit, served):
    page = visit.chat(seed=7, temperature=0.8, max_tokens=24)
    send(page, "It is a truth universally acknowledged")
    answer = last_answer(page)
    expect(answer).to_have_attribute("aria-busy", "true")
    expect(answer.locator(".text")).not_to_be_empty()
    wait_for_end(page)
    expect(answer).not_to_have_attribute("aria-busy", "true")
    body = {"messages": [{"role": "user", "content": "It is a truth universally acknowledged"}]}
    told = ask(served.url, "/v1/chat/completions", body | {"seed": 7, "temperature": 0.8, "max_tokens": 24})
    assert answer.locator(".text").text_content() == told["choices"][0]["message"]["content"].lstrip()
    facts = answer.locator(".facts").inner_text()
    usage = told["usage"]
    assert f"{usage['completion_tokens']} tokens" in facts
    assert f"prompt {usage['prompt_tokens']}, " in facts
    assert re.search(r"[\d.]+ tokens/s", facts)
    assert re.search(r"first token [\d.]+ (ms|s)", facts)
    expect(page.locator("#status")).to_have_text("The answer is complete.")


def test_text_comes_before_the_end(visit):
    """What a page shows that waits for the whole answer, it shows at once."""
    page = visit.chat(max_tokens=LONG, temperature=0)
    send(page, "The whale")
    answer = last_answer(page)
    expect(answer.locator(".facts")).to_contain_text("about ")
    assert answer.get_attribute("aria-busy") == "true"
    page.keyboard.press("Escape")
    wait_for_end(page)


@pytest.mark.parametrize("how", ["button", "escape"])
def test_stopping_aborts_the_request(visit, served, how):
    page = visit.chat(
        max_tokens=LONG, temperature=2, seed=0
    )  # an answer of that many tokens: it does not end by itself
    send(page, "The whale")
    expect(last_answer(page).locator(".facts")).to_be_visible()
    if how == "button":
        page.click("#stop")
    else:
        page.keyboard.press("Escape")
    answer = wait_for_end(page)
    expect(answer.locator(".facts")).to_contain_text("stopped by you")
    expect(page.locator("#send")).to_be_visible()
    expect(page.locator("#message")).to_be_focused()
    for _ in range(1000):  # a disconnect is seen within two steps
        if not served.on_loop(served.backend.snapshot()).num_running:
            break
        page.wait_for_timeout(10)
    assert served.on_loop(served.backend.snapshot()).num_running == 0


def sent_bodies(page) -> list[dict[str, object]]:
    """The bodies of the page's calls, those to come."""
    bodies: list[dict[str, object]] = []
    page.on("request", lambda one: bodies.append(one.post_data_json) if one.method == "POST" else None)
    return bodies


def test_parameters_are_sent_and_empty_ones_are_not(visit):
    page = visit.chat(temperature=0.5, top_p="", max_tokens=2, seed=11, system="Be brief.")
    bodies = sent_bodies(page)
    send(page, "Hello")
    wait_for_end(page)
    (body,) = bodies
    assert (body["temperature"], body["max_tokens"], body["seed"]) == (0.5, 2, 11)
    assert "top_p" not in body
    assert body["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    page.fill("#top_p", "0.25")
    send(page, "Again")
    expect(page.locator(".turn.assistant")).to_have_count(2)
    wait_for_end(page)
    assert bodies[1]["top_p"] == 0.25


def test_a_wrong_parameter_is_shown_where_it_stands(visit):
    page = visit.chat(temperature=9)
    bodies = sent_bodies(page)
    send(page, "Hello")
    expect(page.locator("#temperature")).to_be_focused()
    assert bodies == []
    expect(page.locator("#message")).to_have_value("Hello")


def test_a_conversation_goes_on_survives_a_reload_and_can_be_cleared(visit):
    page = visit.chat(max_tokens=4, temperature=0)
    send(page, "First")
    first = wait_for_end(page).locator(".text").text_content()
    page.reload()
    expect(page.locator(".turn.user .text")).to_have_text("First")
    expect(page.locator(".turn.assistant .text")).to_have_text(first)
    expect(page.locator("#max_tokens")).to_have_value("4")
    bodies = sent_bodies(page)
    send(page, "Second")
    expect(page.locator(".turn.assistant")).to_have_count(2)
    wait_for_end(page)
    assert [message["role"] for message in bodies[0]["messages"]] == ["user", "assistant", "user"]
    page.get_by_role("button", name="New conversation").click()
    expect(page.locator(".turn")).to_have_count(0)
    expect(page.get_by_role("heading", name="Say something")).to_be_visible()
    page.reload()
    expect(page.locator("#model")).not_to_be_empty()
    expect(page.locator(".turn")).to_have_count(0)


def test_trying_again_replaces_the_last_answer(visit):
    page = visit.chat(max_tokens=3)
    send(page, "Hello")
    wait_for_end(page)
    bodies = sent_bodies(page)
    page.get_by_role("button", name="Try again").click()
    wait_for_end(page)
    expect(page.locator(".turn.assistant")).to_have_count(1)
    assert [message["role"] for message in bodies[0]["messages"]] == ["user"]


def test_enter_sends_and_shift_enter_breaks_the_line(visit):
    page = visit.chat(max_tokens=2)
    page.locator("#message").press_sequentially("one")
    page.keyboard.press("Shift+Enter")
    page.locator("#message").press_sequentially("two")
    expect(page.locator("#message")).to_have_value("one\ntwo")
    expect(page.locator(".turn")).to_have_count(0)
    page.keyboard.press("Enter")
    expect(page.locator(".turn.user .text")).to_have_text("one\ntwo")
    expect(page.locator("#message")).to_have_value("")
    wait_for_end(page)


def test_a_refused_message_comes_back_with_the_reason(visit):
    page = visit.chat(max_tokens=4)
    send(page, "whale " * 400)
    alert = page.locator("#turns [role=alert]")
    expect(alert).to_contain_text("256")
    expect(page.locator(".turn")).to_have_count(0)
    expect(page.locator("#message")).to_have_value(("whale " * 400).strip())
    send(page, "whale")
    expect(alert).to_have_count(0)
    wait_for_end(page)
    assert [error for error in visit.errors if "400" not in error] == []
    visit.errors.clear()  # the browser's own words on the refused call


def answer_with(page, *events: str) -> None:
    """Answer the page's next messages with these events, as a server would that fails in the midst of them."""
    body = "".join(f"data: {event}\n\n" for event in events)
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(status=200, content_type="text/event-stream", body=body),
    )


HALF = '{"choices": [{"index": 0, "delta": {"content": "half an answer"}}]}'


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        (
            '{"error": {"message": "A step failed, and this request was in it.", "type": "server_error"}}',
            "A step failed",
        ),
        (": no more", "broke off"),
    ],
)
def test_an_answer_that_breaks_off_keeps_its_text_and_tells_why(visit, last, reason):
    page = visit.chat()
    answer_with(page, HALF, last)
    send(page, "Hello")
    expect(page.locator("#turns [role=alert]")).to_contain_text(reason)
    expect(page.locator(".turn.assistant .text")).to_have_text("half an answer")
    expect(page.locator(".turn.assistant .facts")).to_contain_text("ended by an error")


def test_markup_in_an_answer_is_shown_and_not_run(visit):
    page = visit.chat()
    markup = "<script>alert(1)</script><img src=x onerror=alert(1)>"
    delta = {"reasoning_content": f"thought {markup}", "content": markup}
    answer_with(page, json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": "stop"}]}), "[DONE]")
    send(page, "Hello")
    expect(page.locator(".turn.assistant .text")).to_have_text(markup)
    page.get_by_text("Reasoning").click()
    expect(page.locator(".turn.assistant details p")).to_have_text(f"thought {markup}")
    expect(page.locator("#turns img, #turns script")).to_have_count(0)


def test_markup_in_a_message_is_shown_and_not_run(visit):
    page = visit.chat(max_tokens=2)
    send(page, "<img src=x onerror=alert(1)><b>bold</b>")
    expect(page.locator(".turn.user .text")).to_have_text("<img src=x onerror=alert(1)><b>bold</b>")
    wait_for_end(page)
    expect(page.locator("#turns img, #turns b")).to_have_count(0)


def test_a_server_with_keys_asks_for_one_and_keeps_it_in_the_tab(new_visit, served):
    visit = new_visit(url=served.locked_url)
    page = visit.go("/")
    dialog = page.get_by_role("dialog", name="API key")
    expect(dialog).to_contain_text("wants a key")
    page.get_by_label("Key", exact=True).fill("wrong-0123456789abcdef")
    page.keyboard.press("Enter")
    expect(dialog).to_contain_text("does not know this key")
    page.get_by_label("Key", exact=True).fill("alice-0123456789abcdef")
    page.get_by_role("button", name="Use the key").click()
    expect(page.locator("#model")).to_have_text("embedded")
    page.fill("#max_tokens", "2")
    send(page, "Hello")
    wait_for_end(page)
    page.goto(served.locked_url + "/graphs")
    expect(page.locator("#live")).to_have_text("live")
    state = page.context.storage_state()
    assert (state["cookies"], state["origins"]) == ([], [])
    page.get_by_role("button", name="Forget the key").click()
    expect(dialog).to_be_visible()
    assert [error for error in visit.errors if "401" not in error] == []
    visit.errors.clear()


@pytest.mark.parametrize("path", ["/", "/graphs"])
def test_dark_and_light_follow_the_system(new_visit, path):
    grounds = {}
    for scheme in ("light", "dark"):
        page = new_visit(color_scheme=scheme, bypass_csp=True).go(path)
        expect(page.locator("#model")).not_to_be_empty()
        grounds[scheme] = page.locator("body").evaluate("body => getComputedStyle(body).backgroundColor")
    assert grounds == {"light": "rgb(250, 249, 246)", "dark": "rgb(21, 24, 27)"}


def test_a_phone_shows_everything_that_is_needed(new_visit):
    page = new_visit(width=360, height=640, has_touch=True, bypass_csp=True).chat()
    expect(page.locator("#model")).not_to_be_empty()
    expect(page.locator("#system")).not_to_be_visible()
    page.get_by_text("Parameters").tap()
    page.fill("#max_tokens", "40")
    page.get_by_text("Parameters").tap()
    page.fill("#message", "The whale " * 12)
    page.locator("#send").tap()
    wait_for_end(page)
    for element in ("#message", "#send", "#turns"):
        box = page.locator(element).bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 360
        assert box["y"] + box["height"] <= 640
    assert page.locator("html").evaluate("html => html.scrollWidth") == 360
