"""The load client counts every token of a good stream, and says how a bad one ended, whatever the server does."""

from __future__ import annotations

import asyncio
import json

import pytest

from playhead.errors import ConfigError
from playhead.load import exchange as exchange_module
from playhead.load.client import Connections, Load, SendOptions, Target, fetch
from playhead.load.exchange import Exchange, Outcome, PlannedRequest
from tests.serve.small_server import (
    STREAM_HEAD,
    Reply,
    SmallServer,
    Visit,
    chunk,
    event,
    stream_of,
    text_event,
    usage_event,
    whole,
)

TEXTS = ["The", " whale", " and", " the", " sea"]


def planned(**changes: object) -> PlannedRequest:
    return PlannedRequest(**({"at_s": 0.0, "body": b"{}", "input_len": 1, "output_len": 5} | changes))


def run(reply: Reply, *plans: PlannedRequest, options: SendOptions | None = None) -> tuple[list[Exchange], SmallServer]:
    """What became of these requests."""
    exchanges = [Exchange(plan, keeps_text=True) for plan in plans or (planned(),)]

    async def inside() -> SmallServer:
        async with SmallServer(reply=reply) as server:
            await Load(server.target, exchanges, options or SendOptions()).run()
            return server

    return exchanges, asyncio.run(inside())


def one(reply: Reply, **changes: object) -> Exchange:
    (exchange,), _ = run(reply, planned(**changes))
    return exchange


async def answer(visit: Visit) -> None:
    await visit.send(stream_of(TEXTS))


def test_a_good_stream_has_all_its_tokens_and_times():
    exchange = one(answer)
    assert (exchange.outcome, exchange.status, exchange.text) == (Outcome.FINISHED, 200, "".join(TEXTS))
    assert (exchange.num_events, exchange.num_tokens, exchange.num_prompt) == (5, 5, 3)
    assert len(exchange.gaps_s) == 4
    assert 0 < exchange.sent_s <= exchange.first_s <= exchange.last_s <= exchange.end_s
    assert exchange.first_s + sum(exchange.gaps_s) == pytest.approx(exchange.last_s)


@pytest.mark.parametrize("size", [1, 7, 64])
def test_a_stream_in_small_pieces_is_the_same_stream(size):
    async def reply(visit: Visit) -> None:
        text = stream_of(TEXTS)
        await visit.send(*(text[i : i + size] for i in range(0, len(text), size)))

    assert one(reply).text == "".join(TEXTS)


def test_a_request_carries_its_body_and_the_key():
    (exchange,), server = run(answer, planned(body=b'{"prompt": "x"}'))
    assert exchange.outcome is Outcome.FINISHED
    assert server.visits[0].head.startswith("POST /v1/completions HTTP/1.1\r\n")
    assert "Authorization: Bearer the-key\r\n" in server.visits[0].head
    assert server.visits[0].body == b'{"prompt": "x"}'
    assert "the-key" not in repr(server.target)


def test_usage_says_how_many_tokens_there_were():
    """A server may put several tokens into one event, or none for a half character."""

    async def reply(visit: Visit) -> None:
        events = [text_event("ab"), text_event(""), usage_event(7, num_prompt=11, num_cached=8), event(b"[DONE]")]
        await visit.send(STREAM_HEAD, *map(chunk, events), b"0\r\n\r\n")

    exchange = one(reply)
    assert (exchange.num_events, exchange.num_tokens, exchange.num_prompt, exchange.num_cached) == (1, 7, 11, 8)


def test_a_chat_begins_with_its_first_text_and_not_with_its_role():
    async def reply(visit: Visit) -> None:
        deltas = [{"role": "assistant", "content": ""}, {"reasoning_content": "hm"}, {"content": "yes"}]
        events = [event({"choices": [{"index": 0, "delta": delta}]}) for delta in deltas]
        await visit.send(STREAM_HEAD, *map(chunk, [*events, event(b"[DONE]")]), b"0\r\n\r\n")

    exchange = one(reply)
    assert (exchange.text, exchange.num_tokens) == ("hmyes", 2)


@pytest.mark.parametrize("text", ["all of it", "all of it " * 20_000], ids=["short", "long"])
def test_an_answer_that_is_not_streamed_is_one_event(text):
    async def reply(visit: Visit) -> None:
        usage = {"completion_tokens": 4, "prompt_tokens": 2}
        await visit.send(whole(200, {"choices": [{"text": text}], "usage": usage}))

    exchange = one(reply)
    assert (exchange.outcome, exchange.text, exchange.num_tokens) == (Outcome.FINISHED, text, 4)


def test_an_answer_without_an_end_is_broken(monkeypatch):
    monkeypatch.setattr(exchange_module, "MAX_KEPT_BODY_BYTES", 1000)

    async def reply(visit: Visit) -> None:
        await visit.send(whole(200, {"choices": [{"text": "a" * 1000}]}))

    exchange = one(reply)
    assert (exchange.outcome, exchange.detail) == (Outcome.BROKEN, "an answer that does not end")


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(429, Outcome.REFUSED), (503, Outcome.REFUSED), (400, Outcome.REJECTED), (500, Outcome.REJECTED)],
)
def test_a_refusal_is_told_from_an_error(status, outcome):
    async def reply(visit: Visit) -> None:
        await visit.send(whole(status, {"error": {"code": "queue_full", "message": "..."}}, "Retry-After: 1"))

    exchange = one(reply)
    assert (exchange.outcome, exchange.status, exchange.detail) == (outcome, status, "queue_full")
    assert exchange.num_tokens == 0


async def reset_at_once(visit: Visit) -> None:
    visit.reset()


async def reset_in_the_middle(visit: Visit) -> None:
    await visit.send(STREAM_HEAD, chunk(text_event("The")))
    visit.reset()


async def close_in_the_middle(visit: Visit) -> None:
    await visit.send(STREAM_HEAD, chunk(text_event("The")))
    visit.writer.close()


async def no_http(visit: Visit) -> None:
    await visit.send(b"220 mail.example.org ESMTP\r\n\r\n")


async def bad_json(visit: Visit) -> None:
    await visit.send(STREAM_HEAD, chunk(text_event("The")), chunk(b"data: {oh\n\n"))


async def no_object(visit: Visit) -> None:
    await visit.send(STREAM_HEAD, chunk(b"data: 4\n\n"))


async def no_done(visit: Visit) -> None:
    await visit.send(STREAM_HEAD, chunk(text_event("The")), b"0\r\n\r\n")


@pytest.mark.parametrize(
    "reply", [reset_at_once, reset_in_the_middle, close_in_the_middle, no_http, bad_json, no_object, no_done]
)
def test_a_stream_that_breaks_is_broken_and_others_go_on(reply):
    async def first_breaks(visit: Visit) -> None:
        await (reply if visit.body == b"bad" else answer)(visit)

    (bad, good), _ = run(first_breaks, planned(body=b"bad"), planned(body=b"good", at_s=0.001))
    assert (bad.outcome, bool(bad.detail), bad.end_s > 0) == (Outcome.BROKEN, True, True)
    assert good.outcome is Outcome.FINISHED


def test_an_error_inside_a_stream_is_a_failure():
    async def reply(visit: Visit) -> None:
        events = [text_event("The"), event({"error": {"type": "engine_error", "code": None}}), event(b"[DONE]")]
        await visit.send(STREAM_HEAD, *map(chunk, events), b"0\r\n\r\n")

    exchange = one(reply)
    assert (exchange.outcome, exchange.detail, exchange.num_events) == (Outcome.FAILED, "engine_error", 1)


def test_a_server_that_is_not_there_is_unreachable():
    async def gone() -> Exchange:
        async with SmallServer(reply=answer) as server:
            target = server.target
        exchange = Exchange(planned())
        await Load(target, [exchange], SendOptions()).run()
        return exchange

    exchange = asyncio.run(gone())
    assert (exchange.outcome, exchange.detail) == (Outcome.UNREACHABLE, "ConnectionRefusedError")


def test_a_server_that_never_answers_is_left_after_the_time_limit():
    async def silent(visit: Visit) -> None:
        await visit.send(STREAM_HEAD, chunk(text_event("The")))
        await asyncio.Event().wait()

    exchange = one_with(silent, SendOptions(give_up_after_s=0.05))
    assert (exchange.outcome, exchange.num_events) == (Outcome.TIMED_OUT, 1)


def one_with(reply: Reply, options: SendOptions) -> Exchange:
    (exchange,), _ = run(reply, options=options)
    return exchange


def test_a_planned_departure_closes_the_connection_after_so_many_tokens():
    closed = asyncio.Event()

    async def endless(visit: Visit) -> None:
        await visit.send(STREAM_HEAD)
        try:
            while True:
                await visit.send(chunk(text_event("x")))
        except ConnectionError:
            closed.set()
            raise

    async def inside() -> Exchange:
        async with SmallServer(reply=endless) as server:
            exchange = Exchange(planned(leave_after_events=3))
            await Load(server.target, [exchange], SendOptions()).run()
            await closed.wait()
            return exchange

    exchange = asyncio.run(inside())
    assert (exchange.outcome, exchange.num_events >= 3) == (Outcome.LEFT, True)


def test_a_departure_may_come_before_the_first_byte():
    async def silent(visit: Visit) -> None:
        await asyncio.Event().wait()

    assert one(silent, leave_after_s=0.01).outcome is Outcome.LEFT


def test_connections_are_used_again_and_no_more_are_open_than_requests():
    plans = [planned() for _ in range(6)]
    exchanges, server = run(answer, *plans, options=SendOptions(max_concurrency=2))
    assert [exchange.outcome for exchange in exchanges] == [Outcome.FINISHED] * 6
    assert server.num_connections == 2


def test_a_request_on_a_connection_that_the_server_closed_meanwhile_goes_again():
    async def closes_second(visit: Visit) -> None:
        if visit.number == 1:
            visit.reset()
        else:
            await visit.send(stream_of(TEXTS))

    exchanges, server = run(closes_second, planned(), planned(), options=SendOptions(max_concurrency=1))
    assert [exchange.outcome for exchange in exchanges] == [Outcome.FINISHED] * 2
    assert (len(server.visits), server.num_connections) == (3, 2)


def test_the_loop_is_open_requests_go_out_while_earlier_ones_wait():
    all_came = asyncio.Event()

    async def waits_for_the_last(visit: Visit) -> None:
        if len(visit.server.visits) == 5:
            all_came.set()
        await all_came.wait()
        await visit.send(stream_of(TEXTS))

    exchanges, _ = run(waits_for_the_last, *(planned(at_s=0.001 * i) for i in range(5)))
    assert [exchange.outcome for exchange in exchanges] == [Outcome.FINISHED] * 5


def test_fetch_reads_a_whole_body_or_says_what_failed():
    async def inside() -> tuple[object, str]:
        async def reply(visit: Visit) -> None:
            await visit.send(whole(200, {"path": visit.head.split()[1]}))

        async with SmallServer(reply=reply) as server:
            found = json.loads((await fetch(server.target, "/metrics")).content)
        return found, (await fetch(server.target, "/metrics")).error

    assert asyncio.run(inside()) == ({"path": "/metrics"}, "unreachable: ConnectionRefusedError")


async def cancelled_fetch(monkeypatch: pytest.MonkeyPatch, method: str, *, before: bool) -> None:
    """A fetch that is cancelled just before or after this method of its connections. Returns when all has ended."""
    original = getattr(Connections, method)

    async def cancelling(*args: object) -> None:
        if before:
            fetching.cancel()
        await original(*args)
        if not before:
            fetching.cancel()

    async def reply(visit: Visit) -> None:
        await visit.send(whole(200, {}))

    monkeypatch.setattr(Connections, method, cancelling)
    async with SmallServer(reply=reply) as server:
        fetching = asyncio.create_task(fetch(server.target, "/metrics"))
        await asyncio.wait([fetching])
        await asyncio.gather(*server.handlers)  # each ends when its connection does
    assert fetching.cancelled()


def test_a_fetch_that_is_cancelled_as_its_answer_comes_is_cancelled(monkeypatch):
    """`bench serve` waits for the end of what it has cancelled."""
    asyncio.run(cancelled_fetch(monkeypatch, "call", before=False))


def test_a_fetch_that_is_cancelled_while_its_connections_close_leaves_them_closed(monkeypatch):
    errors = []

    async def inside() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context))
        await cancelled_fetch(monkeypatch, "close", before=True)

    asyncio.run(inside())
    assert errors == []


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000"),
        ("localhost:9", "http://localhost:9"),
        ("http://[::1]:9/v1", "http://[::1]:9"),
        ("http://user:secret@127.0.0.1:9", "http://127.0.0.1:9"),
        ("https://example.org/some/root/v1/", "https://example.org:443/some/root"),
    ],
)
def test_an_address_is_taken_with_or_without_v1(url, wanted):
    assert Target.of(url).url == wanted


@pytest.mark.parametrize(
    "url", ["ftp://example.org", "", "http://", "http://a:99999", "http://a:b", "http://[::1", "http://:80"]
)
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(ConfigError, match="--base-url"):
        Target.of(url)
