"""Hostile requests cost their senders an answer, and nobody else anything. PLAYHEAD_SERVE=full sends all of them."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx

from playhead.kv.ledger import Ledger
from tests.serve.hostile import Case, all_cases
from tests.serve.listening import Wire
from tests.serve.running import Running

GOOD = [
    {"prompt": prompt, "max_tokens": 6, "temperature": 0} for prompt in ("The whale", "My lord", "Call me", "It was")
]


def status_of(server: Running, case: Case) -> int:
    """The status of the answer, 0 if the connection was cut off."""
    with Wire(server.locked_port if case.is_locked else server.port, case.data) as wire:
        if case.hangs_up:
            wire.hang_up()
        return wire.response()[0]


def good_texts(server: Running, is_over: threading.Event) -> list[list[str]]:
    """The answers to good requests, again and again until the others are done."""
    rounds = []
    with httpx.Client(base_url=server.url, timeout=None) as client:
        while not is_over.is_set() or not rounds:
            answers = [client.post("/v1/completions", json=body) for body in GOOD]
            assert [answer.status_code for answer in answers] == [200] * len(GOOD)
            rounds.append([answer.json()["choices"][0]["text"] for answer in answers])
    return rounds


def test_hostile_requests_are_refused_and_good_ones_beside_them_are_exact(server):
    cases = all_cases()
    if os.environ.get("PLAYHEAD_SERVE") != "full":
        cases = cases[::7]
    alone, is_over = threading.Event(), threading.Event()
    alone.set()
    (wanted,) = good_texts(server, alone)
    with ThreadPoolExecutor(2) as pool:
        good = pool.submit(good_texts, server, is_over)
        try:
            statuses = {case.name: status_of(server, case) for case in cases}
        finally:
            is_over.set()
        assert all(texts == wanted for texts in good.result())
    unexpected = {name: status for name, status in statuses.items() if status and not 400 <= status < 500}
    harmless = {name: status for name, status in unexpected.items() if name.startswith("scrambled") and status == 200}
    assert unexpected == harmless, "some were served, or broke the server"
    assert len(harmless) <= len(statuses) // 10
    server.wait_until_idle()
    assert Ledger(server.backend.engine.worker.kv).audit() == []
    assert httpx.get(f"{server.url}/ready", timeout=None).status_code == 200
