"""The pages as files: what a browser would refuse, miss or be unable to reach is found without one."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from fnmatch import fnmatch
from html.parser import HTMLParser
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import pytest

from playhead.engine.snapshot import PageState
from playhead.serve import pages

ROOT = Path(__file__).resolve().parents[2]
NAMES = (*pages.PAGES.values(), *pages.ASSETS)
SCRIPTS = [name for name in NAMES if name.endswith(".js")]
VOID = {"meta", "link", "input", "img", "br"}
AS_HTML = (
    "innerHTML",
    "outerHTML",
    "insertAdjacentHTML",
    "document.write",
    "eval(",
    "new Function",
    "setHTML",
    "srcdoc",
)


def text_of(name: str) -> str:
    return pages.file_answer(name).body.decode()


class Page(HTMLParser):
    """A page's elements, in order, and the tags that are open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.inline: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("script", "style") and data.strip():
            self.inline.append(data)

    def ids(self) -> list[str]:
        return [attrs["id"] for _, attrs in self.elements if attrs.get("id")]


@pytest.fixture(params=pages.PAGES.values())
def page(request) -> Page:
    return Page(text_of(request.param))


def test_a_page_closes_every_tag_and_uses_an_id_once(page):
    assert page.open == []
    assert [name for name, count in Counter(page.ids()).items() if count > 1] == []


def test_a_page_has_no_inline_script_style_or_handler(page):
    """The policy would block them."""
    assert page.inline == []
    for tag, attrs in page.elements:
        assert not [name for name in attrs if name.startswith("on") or name == "style"], tag


def test_a_page_loads_files_of_this_server_alone(page):
    loaded = [attrs.get("src") or attrs.get("href") for tag, attrs in page.elements if tag in ("script", "link", "img")]
    assert loaded
    assert {path.removeprefix("/pages/") for path in loaded} <= set(pages.ASSETS)


def test_every_field_of_a_page_has_a_label(page):
    labelled = {attrs["for"] for tag, attrs in page.elements if tag == "label"}
    fields = {attrs["id"] for tag, attrs in page.elements if tag in ("input", "textarea", "select")}
    assert labelled == fields


def test_references_between_elements_lead_somewhere(page):
    for _, attrs in page.elements:
        for name in ("aria-labelledby", "aria-describedby", "aria-controls"):
            if name in attrs:
                assert attrs[name] in page.ids()
        if (attrs.get("href") or "").startswith("#"):
            assert attrs["href"][1:] in page.ids()


@pytest.mark.parametrize("name", NAMES)
def test_no_file_names_another_server(name):
    text = text_of(name).replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"(https?:|wss?:)?//[\w-]+\.\w|@import|url\(", text)


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_insert_text_and_never_html(name):
    assert [word for word in AS_HTML if word in text_of(name)] == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_import_files_that_are_served(name):
    imported = re.findall(r'from "/pages/([^"]+)"', text_of(name))
    assert set(imported) <= set(pages.ASSETS)
    assert len(imported) == len(re.findall(r"^import\b|^\} from", text_of(name), re.MULTILINE))


@pytest.mark.parametrize(("script", "page_name"), [("chat.js", "chat.html"), ("graphs.js", "graphs.html")])
def test_scripts_look_for_elements_that_are_there(script, page_name):
    wanted = set(re.findall(r'\bat\("([^"]+)"\)', text_of(script) + text_of("server.js")))
    assert wanted <= set(Page(text_of(page_name)).ids())


def test_every_file_of_the_package_is_served_and_shipped():
    there = {one.name for one in files(pages).iterdir() if one.is_file() and not one.name.endswith(".py")}
    assert there == set(NAMES)
    globs = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["playhead"]
    assert [name for name in there if not any(fnmatch(f"serve/pages/{name}", glob) for glob in globs)] == []


@pytest.mark.parametrize("name", NAMES)
def test_every_file_is_sent_with_a_strict_policy(name):
    answer = pages.file_answer(name)
    policy = dict(part.split(" ", 1) for part in answer.headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert "unsafe" not in answer.headers["Content-Security-Policy"]
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.status == 200
    assert answer.body


def test_files_are_public_and_data_is_not():
    public = {route.path for route in pages.PAGE_ROUTES if route.is_public}
    assert public == {*pages.PAGES, *(f"/pages/{name}" for name in pages.ASSETS)}
    assert [route.path for route in pages.PAGE_ROUTES if not route.is_public] == ["/graphs/data/{after_step}"]


def schemes() -> dict[str, dict[str, str]]:
    """The colours of the style sheet, light and dark."""
    blocks = re.findall(r":root \{(.*?)\}", text_of("page.css"), re.DOTALL)
    light, dark = (dict(re.findall(r"--([\w-]+): (#\w{6});", block)) for block in blocks[:2])
    return {"light": light, "dark": light | dark}


def luminance(colour: str) -> float:
    values = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    bright, dim = sorted((luminance(a), luminance(b)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    ("words", "ground"),
    [(w, g) for w in ("text", "quiet", "accent") for g in ("ground", "raised", "sunken")]
    + [("on-accent", "accent"), ("wrong", "wrong-ground"), ("text", "wrong-ground")],
)
def test_words_can_be_read_on_their_ground(scheme, words, ground):
    colours = schemes()[scheme]
    assert contrast(colours[words], colours[ground]) >= 4.5


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_states_of_pages_can_be_told_apart_by_brightness(scheme):
    """So by everyone, whatever colours they see."""
    colours = schemes()[scheme]
    order = ["elsewhere", "free", "cached", "held"]
    for first, second in pairwise(order):
        assert contrast(colours[first], colours[second]) >= 1.15, (first, second)
    assert contrast(colours["held"], colours["elsewhere"]) >= 3


def test_the_map_knows_the_states_by_their_numbers():
    listed = re.search(r"const STATES = \[(.*?)\];", text_of("charts.js"), re.DOTALL)
    names = re.findall(r'\["([\w-]+)"', listed[1])
    assert names == [state.name.lower().replace("_", "-") for state in PageState]


def test_the_style_sheet_uses_colours_that_it_declares():
    css = text_of("page.css")
    used = set(re.findall(r"var\(--([\w-]+)\)", css))
    assert used <= set(re.findall(r"--([\w-]+):", css))
    drawn = re.search(r"const STATES = \[(.*?)\];", text_of("charts.js"), re.DOTALL)
    assert set(re.findall(r'\["([\w-]+)"', drawn[1])) <= schemes()["light"].keys()
