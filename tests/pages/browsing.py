"""A person at a browser, and others beside them."""

from __future__ import annotations

import json
import threading
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Page


@dataclass(frozen=True, kw_only=True)
class Visit:
    """A browser's window on the server. `errors` are what its console said, and what its scripts raised."""

    page: Page
    url: str
    errors: list[str]

    def go(self, path: str) -> Page:
        self.page.goto(self.url + path)
        return self.page

    def chat(self, **parameters: object) -> Page:
        """The chat page, with these values in its fields."""
        page = self.go("/")
        for name, value in parameters.items():
            page.fill(f"#{name}", str(value))
        return page


def ask(url: str, path: str, body: dict[str, object]) -> dict[str, Any]:
    """The answer to a call without a browser."""
    request = urllib.request.Request(url + path, data=json.dumps(body).encode(), method="POST")
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


class Load:
    """Requests that run beside a page until they are done."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.threads: list[threading.Thread] = []

    def begin(self, prompt: str, num_tokens: int) -> None:
        body: dict[str, object] = {"prompt": prompt, "max_tokens": num_tokens, "ignore_eos": True, "seed": 1}
        self.threads.append(threading.Thread(target=ask, args=(self.url, "/v1/completions", body)))
        self.threads[-1].start()

    def wait(self) -> None:
        for thread in self.threads:
            thread.join()
