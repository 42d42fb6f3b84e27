"""`/metrics` of a server that runs: what requests did to it."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

from playhead.load.client import Load, SendOptions, Target, fetch
from playhead.load.exchange import Exchange, Outcome, PlannedRequest
from playhead.load.scrape import series
from playhead.serve.families import FAMILIES
from tests.serve.running import KEYS, Running


def scraped(url: str, key: str | None = None) -> tuple[int, Counter[str]]:
    """The status, and each series summed over its labels; by status for responses."""
    found = asyncio.run(fetch(Target.of(url, key=key), "/metrics"))
    values: Counter[str] = Counter()
    for name, labels, value in series(found.content.decode()):
        if not name.endswith("_bucket"):
            values[name] += value
        if name == "playhead_http_responses_total":
            values[f"{labels['route']} {labels['status']}"] += value
    return found.status, values


def ask(server: Running, *bodies: dict[str, object]) -> list[Exchange]:
    plans = [{"model": "embedded", "prompt": "The whale", "ignore_eos": True} | body for body in bodies]
    exchanges = [
        Exchange(PlannedRequest(at_s=0.0, body=json.dumps(body).encode(), input_len=2, output_len=1)) for body in plans
    ]
    asyncio.run(Load(Target.of(server.url), exchanges, SendOptions(max_concurrency=1)).run())
    server.wait_until_idle()
    return exchanges


def test_requests_are_counted_streamed_or_not_and_refused_ones_too(server):
    _, before = scraped(server.url)
    good = {"max_tokens": 4, "temperature": 0}
    ended = ask(server, good | {"stream": True}, good | {"n": 2}, good | {"max_tokens": -1})
    _, after = scraped(server.url)
    grown = after - before
    assert [one.outcome for one in ended] == [Outcome.FINISHED, Outcome.FINISHED, Outcome.REJECTED]
    assert grown["vllm:generation_tokens_total"] == 4 + 2 * 4
    assert grown["vllm:request_success_total"] == 2
    assert grown["vllm:time_to_first_token_seconds_count"] == grown["vllm:e2e_request_latency_seconds_count"] == 2
    assert grown["vllm:inter_token_latency_seconds_count"] == 3 + 2 * 3
    assert grown["vllm:prompt_tokens_total"] == 2 * ended[1].num_prompt
    assert (grown["/v1/completions 200"], grown["/v1/completions 400"]) == (2, 1)
    assert grown["playhead_requests_refused_total"] == 1
    assert (after["vllm:num_requests_running"], after["playhead_open_streams"]) == (0, 0)
    assert after["playhead_steps_total"] > 0
    assert after["playhead_ledger_violations_total"] == 0


def test_a_running_server_shows_all_metrics_that_have_a_value(server):
    ask(server, {"max_tokens": 2})
    _, values = scraped(server.url)
    always = {name for family in FAMILIES for name in family.series if not name.endswith("_bucket")}
    may_be_absent = {"playhead_requests_refused_total", "playhead_eager_steps_total", "playhead_prefix_refusals_total"}
    assert always - may_be_absent <= values.keys()


def test_metrics_want_a_key_where_there_are_keys(server):
    assert scraped(server.locked_url)[0] == 401
    assert scraped(server.locked_url, KEYS["alice"])[0] == 200
