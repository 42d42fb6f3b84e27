"""Pages over HTTP: files for everyone, data for those who have a key."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request

import pytest

from playhead.serve import pages

PATHS = [*pages.PAGES, *(f"/pages/{name}" for name in pages.ASSETS)]


def get(url: str, key: str | None = None) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body, whatever the status is."""
    request = urllib.request.Request(url, headers={} if key is None else {"Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, dict(response.headers), response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read()


@pytest.mark.parametrize("path", PATHS)
def test_a_file_needs_no_key_and_brings_its_policy(server, path):
    status, headers, body = get(server.locked_url + path)
    assert status == 200
    headers = {name.lower(): value for name, value in headers.items()}
    for name, value in pages.HEADERS.items():
        assert headers[name.lower()] == value
    assert headers["content-type"] in pages.CONTENT_TYPES.values()
    assert body == pages.file_answer(pages.PAGES.get(path) or path.removeprefix("/pages/")).body


def test_data_needs_a_key(server):
    assert get(server.locked_url + "/graphs/data/0")[0] == 401
    assert get(server.locked_url + "/graphs/data/0", key="alice-0123456789abcdef")[0] == 200


@pytest.mark.parametrize("after", ["-1", "x", "1.0", "1e3", "0x10", "9" * 16, "0/1", "%D9%A3"])
def test_a_step_that_is_no_number_is_refused(server, after):
    status, _, body = get(f"{server.url}/graphs/data/{after}")
    assert status == 400
    assert json.loads(body)["error"]["param"] == "after_step"


def test_the_data_adds_up_at_every_moment_of_a_run(server):
    """Of the embedded model, while four requests run and end."""

    def complete(prompt: str) -> None:
        body = {"prompt": prompt, "max_tokens": 40, "ignore_eos": True}
        request = urllib.request.Request(f"{server.url}/v1/completions", data=json.dumps(body).encode())
        request.add_header("Content-Type", "application/json")
        urllib.request.urlopen(request).close()

    threads = [threading.Thread(target=complete, args=(f"The whale {i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    told, last_step = [], 0
    while any(thread.is_alive() for thread in threads) or not told:
        now = json.loads(get(f"{server.url}/graphs/data/{last_step}")[2])["snapshot"]
        told.append(now)
        for group in now["groups"]:
            states = ("num_free", "num_held", "num_cached", "num_in_flight", "num_quarantined")
            assert sum(group[state] for state in states) == group["num_pages"]
        assert all(step["number"] > last_step for step in now["steps"])
        assert now["num_running"] == len(now["requests"])
        last_step = now["stats"]["num_steps"]
    for thread in threads:
        thread.join()
    assert any(now["num_running"] for now in told)
    assert told[0]["stats"]["num_steps"] < told[-1]["stats"]["num_steps"]
