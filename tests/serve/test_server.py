"""A server with a model: keys on every route, ids, refusals, and a client that leaves takes its request along."""

from __future__ import annotations

import json
import logging
import threading
import time

import httpx
import pytest

from playhead.kv.ledger import Ledger
from playhead.logs import NAME
from tests.serve.listening import Wire
from tests.serve.running import KEYS, Running

PUBLIC = {"/health", "/ready", "/", "/graphs"}
PROMPT = {"prompt": "The whale", "max_tokens": 4, "temperature": 0}
ENDLESS = {"prompt": "The whale", "max_tokens": 200, "temperature": 0, "ignore_eos": True, "stream": True}


def answers(server: Running, headers: dict[str, str]) -> dict[tuple[str, str], int]:
    """The status of every endpoint of the locked server, by method and path."""
    with httpx.Client(base_url=server.locked_url, timeout=60, headers=headers) as client:
        return {
            (one.method, one.path): client.request(
                one.method,
                one.path.replace("{", "a").replace("}", "b"),
                content=b"{}" if one.method == "POST" else None,
                headers={"Content-Type": "application/json"} if one.method == "POST" else None,
            ).status_code
            for one in server.apps[1].endpoints
        }


NOBODY = {
    "no header": {},
    "an empty one": {"Authorization": ""},
    "no key": {"Authorization": "Bearer"},
    "a wrong key": {"Authorization": "Bearer alice-0123456789abcdeX"},
    "half a key": {"Authorization": "Bearer alice-0123456789abcde"},
    "a name": {"Authorization": "Bearer alice"},
    "another scheme": {"Authorization": f"Basic {KEYS['alice']}"},
    "a bare key": {"Authorization": KEYS["alice"]},
    "another header": {"X-Api-Key": KEYS["alice"]},
    "a cookie": {"Cookie": f"Authorization=Bearer {KEYS['alice']}"},
    "a proxy's header": {"X-Forwarded-For": "127.0.0.1", "X-Original-URL": "/health", "X-Rewrite-URL": "/health"},
    "two keys in one": {"Authorization": f"Bearer {KEYS['alice']}, Bearer {KEYS['bob']}"},
}


@pytest.mark.parametrize("headers", NOBODY.values(), ids=NOBODY)
def test_no_route_but_the_public_ones_answers_whoever_has_no_key(server, headers):
    statuses = answers(server, headers)
    assert len(statuses) > 10
    for (_, path), status in statuses.items():
        is_public = path in PUBLIC or path.startswith("/pages/")
        assert (status == 401) != is_public, path


def test_every_route_lets_both_keys_in(server):
    for key in KEYS.values():
        statuses = answers(server, {"Authorization": f"Bearer {key}"})
        assert 401 not in statuses.values()
        assert max(statuses.values()) < 500


def test_a_refused_key_is_an_error_that_openai_clients_know(server):
    answer = httpx.get(f"{server.locked_url}/v1/models")
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["error"]["code"] == "invalid_api_key"


def test_a_client_names_its_request_or_gets_a_name(server):
    assert httpx.get(f"{server.url}/health", headers={"X-Request-Id": "mine-1"}).headers["x-request-id"] == "mine-1"
    ids = {httpx.get(f"{server.url}/health").headers["x-request-id"] for _ in range(3)}
    assert len(ids) == 3
    assert httpx.get(f"{server.url}/health", headers={"X-Request-Id": "a b"}).status_code == 400


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/none", 404), ("GET", "/v1/completions", 405), ("DELETE", "/health", 405), ("POST", "/v1/models", 405)],
)
def test_what_is_not_there_is_an_error_body(server, method, path, status):
    answer = httpx.request(method, server.url + path)
    assert answer.status_code == status
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert (answer.headers.get("allow") is not None) == (status == 405)


def test_head_is_get_without_a_body(server):
    answer = httpx.head(f"{server.url}/v1/models")
    assert (answer.status_code, answer.content) == (200, b"")


def test_two_requests_of_one_id_are_both_served(server):
    """An id is the client's own business. The engine's names are others."""
    headers = {"X-Request-Id": "same"}
    client = httpx.Client(base_url=server.url, timeout=60, headers=headers)
    with client, client.stream("POST", "/v1/completions", json=ENDLESS) as first:
        assert next(first.iter_lines()).startswith("data: ")
        assert client.post("/v1/completions", json=PROMPT).status_code == 200
    server.wait_until_idle()


def test_tenants_share_no_prefix(server):
    body = {
        **PROMPT,
        "prompt": "It is a truth universally acknowledged, that a single man in possession of a good fortune",
    }
    url = f"{server.locked_url}/v1/completions"

    def cached(name: str) -> int:
        answer = httpx.post(url, json=body, headers={"Authorization": f"Bearer {KEYS[name]}"}, timeout=60).json()
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert cached("alice") == 0
    assert cached("alice") > 0
    assert cached("bob") == 0


@pytest.fixture
def gate(server, monkeypatch):
    """Steps run as often as it is released; all of them at the end."""
    permits, step, is_open = threading.Semaphore(0), server.backend.engine.step, threading.Event()

    def gated():
        if not is_open.is_set():
            permits.acquire()
        return step()

    monkeypatch.setattr(server.backend.engine, "step", gated)
    yield permits
    is_open.set()
    permits.release(1000)
    server.wait_until_idle()


def test_a_client_that_leaves_frees_its_pages_within_two_steps(server, gate):
    engine = server.backend.engine
    body = json.dumps(ENDLESS).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with Wire(server.port, head + b"Content-Length: %d\r\n\r\n" % len(body) + body) as wire:
        gate.release(4)
        wire.events(2)
        wire.sock.close()
    while server.num_open:
        time.sleep(0.001)
    gate.release(2)
    server.wait_until_idle()  # and would wait for ever if a third step were needed
    assert engine.num_requests == (0, 0)
    assert Ledger(engine.worker.kv).audit() == []


def test_the_access_log_has_what_happened_and_nothing_of_what_was_said(server, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger(NAME), "propagate", True)
    caplog.set_level("INFO", logger=NAME)
    answer = httpx.post(
        f"{server.locked_url}/v1/completions",
        json={**PROMPT, "prompt": "a secret whale"},
        headers={"Authorization": f"Bearer {KEYS['alice']}", "X-Request-Id": "logged-1"},
        timeout=60,
    )
    httpx.get(f"{server.url}/secret-path")
    server.wait_until_idle()
    facts = [vars(record)["facts"] for record in caplog.records if record.name == "playhead.access"]
    (one,) = [fact for fact in facts if fact["request_id"] == "logged-1"]
    assert {**one, "ms": 0} == {
        "method": "POST",
        "route": "/v1/completions",
        "status": 200,
        "ms": 0,
        "tenant": "alice",
        "request_id": "logged-1",
        "prompt_tokens": answer.json()["usage"]["prompt_tokens"],
        "output_tokens": 4,
    }
    assert "secret" not in caplog.text
    assert answer.json()["choices"][0]["text"] not in caplog.text
    assert KEYS["alice"] not in caplog.text
