"""More consumers than places: they wait in line, first come, first served, or are refused with the limit.

No test sleeps: what must have happened is awaited, and steps wait at a gate.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest

from playhead.engine.async_engine import AsyncEngine, AsyncEngineArgs
from playhead.errors import AbsentFeature, ConfigError, EngineStopped, MisuseError, RequestError
from playhead.kv.ledger import Ledger
from playhead.llm import LLM
from playhead.outputs import FinishReason
from playhead.sampling_params import RequestOutputKind, SamplingParams

FEW = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
SEEDED = SamplingParams(seed=5, max_tokens=5, ignore_eos=True)
ENDLESS = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
SMALL = {"max_model_len": 96, "max_num_seqs": 4, "kv_memory_bytes": 1 << 23, "graph_mode": "eager"}
PROMPTS = [[5 + i, 6, 7] for i in range(10)]


@pytest.fixture(scope="module")
def llm():
    with LLM("embedded", **SMALL) as made:
        yield made


@pytest.fixture(scope="module")
def wanted(llm):
    return [tokens(output) for output in llm.generate(PROMPTS, FEW)]


@pytest.fixture(autouse=True)
def _idle_afterwards(llm):
    yield
    assert not llm.engine.has_work
    assert Ledger(llm.engine.worker.kv).audit() == []


@pytest.fixture
def gate(llm, monkeypatch):
    """Steps run as often as it is released."""
    permits, step = threading.Semaphore(0), llm.engine.step

    def gated():
        permits.acquire()
        return step()

    monkeypatch.setattr(llm.engine, "step", gated)
    return permits


def tokens(output) -> tuple[int, ...]:
    return tuple(output.outputs[0].token_ids)


async def last(engine, prompt, params=FEW, request_id=None):
    return [output async for output in engine.generate(prompt, params, request_id)][-1]


async def queued(*waiting) -> list[asyncio.Task]:
    """Tasks that have come as far as they come without the engine."""
    tasks = [asyncio.ensure_future(one) for one in waiting]
    await asyncio.sleep(0)
    return tasks


@pytest.mark.parametrize(("num_callers", "queue"), [(50, {}), (200, {"max_queued_requests": 6})])
def test_many_callers_on_a_small_engine_each_get_their_own(llm, wanted, num_callers, queue):
    async def all_of_them():
        async with AsyncEngine.of(llm.engine, **queue) as engine:
            asked = (last(engine, PROMPTS[i % len(PROMPTS)]) for i in range(num_callers))
            return await asyncio.gather(*asked)

    outputs = asyncio.run(all_of_them())
    assert [tokens(output) for output in outputs] == wanted * (num_callers // len(PROMPTS))


def test_a_request_that_finds_the_queue_full_waits_until_those_before_it_have_room(llm, gate):
    """Four run and none may wait in the engine: the engine gets the fifth and the sixth in the order they came."""

    async def crowd():
        async with AsyncEngine.of(llm.engine, max_queued_requests=0) as engine:
            ended = []

            async def consumer(name, params):
                await last(engine, "The whale", params, name)
                ended.append(name)

            running = [consumer(f"running {i}", ENDLESS) for i in range(3)] + [consumer("short", FEW)]
            tasks = await queued(*running, consumer("fifth", ENDLESS), consumer("sixth", FEW))
            assert [ticket.request_id for ticket in engine._serving.line] == ["fifth", "sixth"]
            gate.release(1000)
            await asyncio.gather(*tasks)
            return ended

    ended = asyncio.run(crowd())
    assert ended[0] == "short"
    assert ended.index("sixth") > 1  # short as it is, it came after the fifth had its place


def test_those_who_leave_the_line_let_the_next_one_in(llm, gate, wanted):
    async def crowd():
        async with AsyncEngine.of(llm.engine, max_queued_requests=0) as engine:
            running = await queued(*(last(engine, "The whale", ENDLESS) for _ in range(4)))
            (cancelled, aborted, served) = await queued(
                last(engine, PROMPTS[0]), last(engine, PROMPTS[1], FEW, "aborted"), last(engine, PROMPTS[2])
            )
            cancelled.cancel()
            await engine.abort("aborted")
            assert (await aborted).outputs[0].finish_reason is FinishReason.ABORT
            assert [len(engine._serving.line), len(engine._serving.tickets)] == [1, 4]
            for task in running:
                task.cancel()
            gate.release(1000)
            return await served

    assert tokens(asyncio.run(crowd())) == wanted[2]


def test_a_request_with_more_samples_than_places_has_the_engine_to_itself(llm):
    params = SamplingParams(n=9, seed=5, max_tokens=3)
    alone = llm.generate("The whale", params)[0]

    async def beside_another():
        async with AsyncEngine.of(llm.engine, max_queued_requests=1) as engine:
            return await asyncio.gather(last(engine, PROMPTS[0]), last(engine, "The whale", params))

    _, many = asyncio.run(beside_another())
    assert [list(sample.token_ids) for sample in many.outputs] == [list(sample.token_ids) for sample in alone.outputs]


def test_a_queue_can_be_told_to_refuse_and_says_its_limit(llm, gate):
    async def crowd():
        async with AsyncEngine.of(llm.engine, max_queued_requests=2, when_full="refuse") as engine:
            tasks = await queued(*(last(engine, "The whale", FEW) for _ in range(6)))
            with pytest.raises(RequestError, match="6 sequences running or waiting and 1 more; wanted at most 6"):
                await last(engine, "The whale")
            gate.release(1000)
            await asyncio.gather(*tasks)

    asyncio.run(crowd())


def test_closing_tells_those_in_line(llm, gate):
    async def closed():
        engine = AsyncEngine.of(llm.engine, max_queued_requests=0)
        tasks = await queued(*(last(engine, "The whale", ENDLESS) for _ in range(6)))
        gate.release(1000)
        await engine.close()
        return await asyncio.gather(*tasks, return_exceptions=True)

    assert {type(error) for error in asyncio.run(closed())} == {EngineStopped}


def test_who_leaves_the_line_of_an_engine_that_has_stopped_lets_nobody_in(llm, gate):
    """Whoever was let in there would wait for ever."""

    async def stopped():
        engine = AsyncEngine.of(llm.engine, max_queued_requests=0)
        tasks = await queued(*(last(engine, "The whale", ENDLESS) for _ in range(6)))
        gate.release(1000)
        tasks[4].cancel()  # leaves when the event loop goes on: the thread has ended by then
        engine.shutdown()
        async with asyncio.timeout(30):
            return await asyncio.gather(*tasks, return_exceptions=True)

    errors = asyncio.run(stopped())
    assert [type(error) for error in errors] == [EngineStopped] * 4 + [asyncio.CancelledError, EngineStopped]


def test_an_engine_whose_close_was_cancelled_is_closed_all_the_same(llm, gate, wanted):
    async def closed():
        engine = AsyncEngine.of(llm.engine)
        tasks = await queued(last(engine, "The whale", ENDLESS))
        [closing] = await queued(engine.close())
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        gate.release(1000)
        assert [type(error) for error in await asyncio.gather(*tasks, return_exceptions=True)] == [EngineStopped]
        await engine.start()
        again = await last(engine, PROMPTS[0])
        await engine.close()
        return again

    assert tokens(asyncio.run(closed())) == wanted[0]
    assert tokens(llm.generate([PROMPTS[0]], FEW)[0]) == wanted[0]


def test_an_abort_that_a_close_overtakes_is_answered(llm, gate):
    async def both():
        engine = AsyncEngine.of(llm.engine)
        tasks = await queued(last(engine, "The whale", ENDLESS, "one"))
        gate.release()
        aborting, closing = await queued(engine.abort("one"), engine.close())
        gate.release(1000)
        async with asyncio.timeout(30):
            await asyncio.gather(aborting, closing)
            return await asyncio.gather(*tasks, return_exceptions=True)

    [ended] = asyncio.run(both())
    assert isinstance(ended, EngineStopped) or ended.outputs[0].finish_reason is FinishReason.ABORT


def test_an_abort_on_a_second_event_loop_is_refused(llm):
    """The answer would be given on the first loop, and the second would wait for ever."""
    engine = AsyncEngine.of(llm.engine)

    async def abort() -> None:
        async with asyncio.timeout(30):
            await engine.abort("one")

    async def intrude() -> None:
        stream = engine.generate("The whale", ENDLESS, "one")
        await anext(stream)
        with pytest.raises(MisuseError, match="a second event loop"):
            await asyncio.to_thread(asyncio.run, abort())
        await stream.aclose()
        await engine.close()

    asyncio.run(intrude())


def test_a_request_of_an_event_loop_that_ended_can_be_aborted(llm):
    engine = AsyncEngine.of(llm.engine)
    loop = asyncio.new_event_loop()
    stream = engine.generate("The whale", ENDLESS, "one")
    loop.run_until_complete(anext(stream))
    loop.close()

    async def abort() -> None:
        async with asyncio.timeout(30):
            await engine.abort("one")
        assert not engine.has_requests
        await engine.close()

    asyncio.run(abort())


@pytest.mark.parametrize(
    ("queue", "says"),
    [
        ({"max_queued_requests": -1}, "max_queued_requests: found -1; wanted an integer from 0"),
        ({"max_queued_requests": True}, "max_queued_requests: found True"),
        ({"when_full": "drop"}, "when_full: found 'drop'; wanted one of wait, refuse"),
    ],
)
def test_a_queue_that_cannot_be_is_refused(queue, says):
    with pytest.raises(ConfigError, match=says):
        AsyncEngine("embedded", **queue)


def test_the_first_request_starts_an_engine_and_every_event_loop_may_use_it_in_turn(llm, wanted):
    engine = AsyncEngine.of(llm.engine)
    assert not engine.is_running
    for _ in range(2):
        assert tokens(asyncio.run(last(engine, PROMPTS[0]))) == wanted[0]
        assert engine.is_running
    engine.shutdown()
    assert not engine.is_running


def test_an_event_loop_that_ended_in_the_middle_of_a_request_leaves_nothing_for_the_next(llm, wanted):
    engine = AsyncEngine.of(llm.engine)
    loop = asyncio.new_event_loop()
    stream = engine.generate("The whale", ENDLESS)
    loop.run_until_complete(anext(stream))
    loop.close()  # without a word to the stream
    assert tokens(asyncio.run(last(engine, PROMPTS[0]))) == wanted[0]
    asyncio.run(engine.close())


def test_a_second_event_loop_is_refused_while_the_first_has_requests(llm):
    engine = AsyncEngine.of(llm.engine)

    async def intrude() -> None:
        stream = engine.generate("The whale", ENDLESS)
        await anext(stream)
        with pytest.raises(MisuseError, match="a second event loop"):
            await asyncio.to_thread(asyncio.run, last(engine, PROMPTS[0]))
        await stream.aclose()
        await engine.close()

    asyncio.run(intrude())


def test_an_engine_of_its_own_gives_everything_back_at_shutdown(wanted):
    engine = AsyncEngine.from_engine_args(AsyncEngineArgs("embedded", **SMALL))
    assert tokens(asyncio.run(last(engine, PROMPTS[0]))) == wanted[0]
    engine.shutdown()
    engine.shutdown()
    with pytest.raises(MisuseError, match="used after close"):
        asyncio.run(last(engine, PROMPTS[0]))


def test_a_closed_engine_does_not_start_by_itself(llm, wanted):
    async def closed():
        engine = AsyncEngine.of(llm.engine)
        await engine.close()
        with pytest.raises(EngineStopped, match="Start it again"):
            await last(engine, PROMPTS[0])
        async with engine:
            return await last(engine, PROMPTS[0])

    assert tokens(asyncio.run(closed())) == wanted[0]


def test_a_conversation_is_answered_as_an_llm_answers_it(llm, monkeypatch):
    monkeypatch.setattr(llm.engine.tokenizer, "chat_stops", ("e",))
    messages = [{"role": "user", "content": "Call me Ishmael."}]
    params = SamplingParams(temperature=0, max_tokens=40)

    async def answered():
        async with AsyncEngine.of(llm.engine) as engine:
            return [output async for output in engine.chat(messages, params)][-1].outputs

    wanted = llm.chat(messages, params)[0].outputs
    assert wanted[0].stop_reason == "e"
    assert asyncio.run(answered()) == wanted


def test_what_the_engine_is_asked_about_it_answers_and_what_it_lacks_it_names(llm):
    async def questions():
        engine = AsyncEngine.of(llm.engine)
        await engine.check_health()
        with pytest.raises(AbsentFeature, match="no pooling models"):
            engine.encode("The whale")
        ids = (await engine.get_tokenizer()).encode("The whale")
        return ids, await engine.get_default_sampling_params()

    ids = llm.get_tokenizer().encode("The whale")
    assert asyncio.run(questions()) == (ids, llm.get_default_sampling_params())


def test_the_prefix_cache_is_emptied_between_two_steps(llm):
    async def asked_again():
        async with AsyncEngine.of(llm.engine) as engine:
            cached = [(await last(engine, [9] * 40)).num_cached_tokens for _ in range(2)]
            assert await engine.reset_prefix_cache()
            return [*cached[1:], (await last(engine, [9] * 40)).num_cached_tokens]

    before, after = asyncio.run(asked_again())
    assert before > 0 == after


@pytest.mark.parametrize("num_samples", [1, 2])
def test_a_consumer_may_ask_for_what_is_new_or_for_the_end_alone(llm, num_samples):
    kinds, asked = (RequestOutputKind.DELTA, RequestOutputKind.FINAL_ONLY), {"n": num_samples, "logprobs": 0}

    async def outputs():
        async with AsyncEngine.of(llm.engine) as engine:
            return [
                [output async for output in engine.generate("The whale", replace(SEEDED, output_kind=kind, **asked))]
                for kind in kinds
            ]

    wanted = llm.generate("The whale", replace(SEEDED, **asked))[0]
    news, (end,) = asyncio.run(outputs())
    for i, whole in enumerate(wanted.outputs):
        parts = [part for output in news for part in output.outputs if part.index == i]
        ids = [token for part in parts for token in part.token_ids]
        assert ids == whole.token_ids == end.outputs[i].token_ids
        assert "".join(part.text for part in parts) == whole.text == end.outputs[i].text
        assert sum(len(part.logprobs) for part in parts) == len(whole.token_ids)


def test_a_stream_may_be_asked_for_what_is_new(llm):
    texts = [output.outputs[0].text for output in llm.stream("The whale", SEEDED)]
    news = [
        one.outputs[0].text for one in llm.stream("The whale", replace(SEEDED, output_kind=RequestOutputKind.DELTA))
    ]
    (end,) = llm.stream("The whale", replace(SEEDED, output_kind=RequestOutputKind.FINAL_ONLY))
    assert "".join(news) == texts[-1] == end.outputs[0].text
    assert len(news) == len(texts)


def test_a_keyword_that_cannot_be_had_is_refused_by_name(llm):
    async def ask(**keywords):
        async with AsyncEngine.of(llm.engine) as engine:
            return [output async for output in engine.generate("The whale", FEW, **keywords)]

    for keywords, says in (
        ({"lora_request": object()}, "'lora_request'.*no adapters"),
        ({"trace_headers": {"a": "b"}}, "'trace_headers'.*playhead serve --otel"),
        ({"use_tqdm": False}, "'use_tqdm'; wanted one of prompt, sampling_params, request_id"),
    ):
        with pytest.raises(RequestError, match=says):
            asyncio.run(ask(**keywords))
    assert asyncio.run(ask(lora_request=None, trace_headers=None, data_parallel_rank=None))


def test_an_engine_shows_its_model_and_what_it_does(llm, gate):
    facts = "'embedded', cpu, float32, context 96"
    engine = AsyncEngine.of(llm.engine, max_queued_requests=0)
    assert repr(engine) == f"AsyncEngine({facts}, not started)"

    async def crowd():
        tasks = await queued(*(last(engine, PROMPTS[0]) for _ in range(5)))
        shown = repr(engine)
        gate.release(1000)
        await asyncio.gather(*tasks)
        await engine.close()
        return shown

    assert asyncio.run(crowd()) == f"AsyncEngine({facts}, 4 requests, 1 in line)"
    assert repr(engine) == f"AsyncEngine({facts}, closed)"


def test_who_left_may_come_back_under_the_same_id_at_once(llm, gate, wanted):
    """A caller that gave up after a time-out cannot know when the engine has heard of it."""

    async def come_back():
        async with AsyncEngine.of(llm.engine, max_queued_requests=0) as engine:
            (left,) = await queued(last(engine, "The whale", ENDLESS, "job"))
            left.cancel()
            await asyncio.gather(left, return_exceptions=True)
            (again,) = await queued(last(engine, PROMPTS[0], FEW, "job"))
            with pytest.raises(RequestError, match="an id in use"):
                await last(engine, PROMPTS[1], FEW, "job")
            gate.release(1000)
            return await again

    assert tokens(asyncio.run(come_back())) == wanted[0]


def test_an_engine_gives_no_request_the_name_that_a_caller_chose(llm, gate, wanted):
    async def mixed():
        async with AsyncEngine.of(llm.engine) as engine:
            (named,) = await queued(last(engine, PROMPTS[1], FEW, "a1"))
            (unnamed,) = await queued(last(engine, PROMPTS[0]))
            gate.release(1000)
            return await asyncio.gather(named, unnamed)

    named, unnamed = asyncio.run(mixed())
    assert (named.request_id, tokens(named)) == ("a1", wanted[1])
    assert (unnamed.request_id, tokens(unnamed)) == ("a2", wanted[0])


class Name(str):
    """An id that counts how often it is compared."""

    num_compared = 0

    def __eq__(self, other):
        Name.num_compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_a_request_is_not_compared_with_all_those_in_line(llm, gate):
    """With thousands in line, each new one would hold the event loop and the engine up."""

    async def crowd():
        async with AsyncEngine.of(llm.engine, max_queued_requests=0) as engine:
            tasks = await queued(*(last(engine, "The whale", FEW, Name(f"r{i}")) for i in range(60)))
            num_in_line = len(engine._serving.line)
            for task in reversed(tasks):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            gate.release(1000)
            return num_in_line

    Name.num_compared = 0
    assert asyncio.run(crowd()) == 56
    assert Name.num_compared < 60
