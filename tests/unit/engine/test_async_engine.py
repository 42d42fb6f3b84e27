"""Many consumers on one engine: each gets its own tokens, and leaving, failing and closing leave nothing behind.

No test sleeps: what must have happened is awaited, steps wait at a gate, and closing joins the thread.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

import pytest

from playhead.engine.async_engine import AsyncEngine
from playhead.engine.serving import Serving
from playhead.errors import EngineStopped, MisuseError, RequestError, StepFailed
from playhead.kv.ledger import Ledger
from playhead.llm import LLM
from playhead.models.text.tokenizer import Tokenizer
from playhead.outputs import FinishReason, RequestOutput
from playhead.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
ENDLESS = SamplingParams(temperature=0, max_tokens=90, ignore_eos=True)


@pytest.fixture(scope="module")
def llm():
    with LLM("embedded", max_model_len=96, max_num_seqs=4, max_num_batched_tokens=32, kv_memory_bytes=1 << 24) as made:
        yield made


@pytest.fixture
def gate(llm, monkeypatch):
    """Steps run as often as it is released."""
    permits, step = threading.Semaphore(0), llm.engine.step

    def gated():
        permits.acquire()
        return step()

    monkeypatch.setattr(llm.engine, "step", gated)
    return permits


async def last(engine: AsyncEngine, prompt, params=GREEDY, **more) -> RequestOutput:
    """The last output of a request."""
    return [output async for output in engine.generate(prompt, params, **more)][-1]


def is_clean(llm: LLM) -> bool:
    return not llm.engine.has_work and Ledger(llm.engine.worker.kv).audit() == []


def test_concurrent_requests_get_the_tokens_of_generate(llm):
    prompts = ["The whale", "My lord", [5, 6, 7], "Call me"]
    wanted = [llm.generate([prompt], GREEDY)[0].outputs[0].token_ids for prompt in prompts]

    async def all_of_them():
        async with AsyncEngine.of(llm.engine) as engine:
            assert engine.is_running
            found = await asyncio.gather(*(last(engine, prompt) for prompt in prompts))
            assert engine.stats.num_generated_tokens == llm.stats.num_generated_tokens
        assert not engine.is_running
        return found

    found = asyncio.run(all_of_them())
    assert [output.outputs[0].token_ids for output in found] == wanted
    assert all(output.finished for output in found)
    assert is_clean(llm)


@pytest.mark.parametrize("form", [str, lambda text: {"prompt": text}], ids=["text", "table"])
@pytest.mark.parametrize(("num_words", "is_beside"), [(10, False), (8_000, True)])
def test_a_long_text_is_read_beside_the_event_loop(llm, monkeypatch, form, num_words, is_beside):
    """In whichever form it comes: encoding on the loop would keep every other request's tokens waiting."""
    threads, encode = [], Tokenizer.encode

    def noted(*args, **keywords):
        threads.append(threading.current_thread())
        return encode(*args, **keywords)

    monkeypatch.setattr(Tokenizer, "encode", noted)
    params = SamplingParams(truncate_prompt_tokens=4)
    assert len(asyncio.run(llm.engine.reader.read(form("sea " * num_words), params)).ids) == 4
    assert (threads != [threading.main_thread()]) == is_beside


def test_outputs_grow_and_the_last_one_is_finished(llm):
    async def outputs():
        async with AsyncEngine.of(llm.engine) as engine:
            return [output async for output in engine.generate("The whale", GREEDY, request_id="mine")]

    found = asyncio.run(outputs())
    sizes = [len(output.outputs[0].token_ids) for output in found]
    assert sizes == sorted(set(sizes))
    assert [output.finished for output in found] == [False] * (len(found) - 1) + [True]
    assert {output.request_id for output in found} == {"mine"}


def test_several_samples_come_together(llm):
    params = SamplingParams(n=3, seed=5, max_tokens=6)
    wanted = llm.generate("The whale", params)[0]

    async def outputs():
        async with AsyncEngine.of(llm.engine) as engine:
            return [output async for output in engine.generate("The whale", params)]

    found = asyncio.run(outputs())
    assert [c.token_ids for c in found[-1].outputs] == [c.token_ids for c in wanted.outputs]
    assert [c.index for c in found[-1].outputs] == [0, 1, 2]
    assert [output.finished for output in found] == [False] * (len(found) - 1) + [True]


@pytest.mark.parametrize("leave", ["break", "aclose", "cancel"])
def test_a_consumer_that_leaves_frees_its_memory_and_disturbs_nobody(llm, leave):
    wanted = llm.generate("My lord", GREEDY)[0].outputs[0].token_ids

    async def leaver(engine, began):
        stream = engine.generate("The whale", ENDLESS, request_id="leaves")
        async for _ in stream:
            began.set()
            if leave == "aclose":
                await stream.aclose()
            if leave != "cancel":
                break

    async def both():
        began = asyncio.Event()
        async with AsyncEngine.of(llm.engine) as engine:
            left = asyncio.create_task(leaver(engine, began))
            await began.wait()
            if leave == "cancel":
                left.cancel()
            with suppress(asyncio.CancelledError):
                await left
            stays = await last(engine, "My lord")
            await last(engine, "My lord")  # orders are followed in turn, so the leaver's was
            assert engine._serving.ticket_of("leaves") is None
        return stays

    assert asyncio.run(both()).outputs[0].token_ids == wanted
    assert is_clean(llm)


def test_an_abort_ends_the_stream_with_what_there_is(llm):
    async def aborted():
        async with AsyncEngine.of(llm.engine) as engine:
            outputs = []
            async for output in engine.generate("The whale", ENDLESS, request_id="gone"):
                outputs.append(output)
                await engine.abort("gone")
            await engine.abort("gone")
            return outputs

    found = asyncio.run(aborted())
    assert found[-1].finished
    assert found[-1].outputs[0].finish_reason is FinishReason.ABORT
    assert found[-1].outputs[0].text.startswith(found[0].outputs[0].text)
    assert is_clean(llm)


def test_a_slow_consumer_misses_outputs_but_never_text(llm, gate, monkeypatch):
    """The engine is done before the second look: one output waits, and it is the last."""
    finished = told_when_finished(monkeypatch)

    async def slow():
        async with AsyncEngine.of(llm.engine) as engine:
            gate.release(2)
            stream = engine.generate("The whale", GREEDY)
            first = await anext(stream)
            gate.release(1000)
            await asyncio.to_thread(finished.wait)
            return first, [output async for output in stream]

    first, rest = asyncio.run(slow())
    assert not first.finished
    assert [output.finished for output in rest] == [True]
    assert rest[0].outputs[0].token_ids == llm.generate("The whale", GREEDY)[0].outputs[0].token_ids


def told_when_finished(monkeypatch) -> threading.Event:
    """Set when the thread has delivered a request's last output."""
    finished, deliver = threading.Event(), Serving._deliver

    def watched(self, outputs):
        deliver(self, outputs)
        if any(output.finished for output in outputs):
            finished.set()

    monkeypatch.setattr(Serving, "_deliver", watched)
    return finished


def test_a_blocked_event_loop_is_told_once(llm, monkeypatch):
    """Outputs of many steps make one call on the loop: a loop that is busy does not collect them."""
    finished = told_when_finished(monkeypatch)

    async def busy():
        calls = 0
        async with AsyncEngine.of(llm.engine) as engine:
            loop = asyncio.get_running_loop()
            schedule = loop.call_soon_threadsafe

            def counted(*args):
                nonlocal calls
                calls += 1
                return schedule(*args)

            stream = engine.generate("The whale", GREEDY)
            waiting = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)  # it is queued
            loop.call_soon_threadsafe = counted
            finished.wait()
            del loop.call_soon_threadsafe
            assert (await waiting).finished
            await stream.aclose()
            return calls

    assert asyncio.run(busy()) <= 1


def broken(*args, **kwargs):
    raise MemoryError("as a late capture may")


def test_a_failed_step_ends_those_in_flight_and_takes_new_ones(llm, monkeypatch):
    wanted = llm.generate("The whale", GREEDY)[0].outputs[0].token_ids

    async def failing():
        async with AsyncEngine.of(llm.engine) as engine:
            streams = [engine.generate(prompt, ENDLESS) for prompt in ("The whale", "My lord")]
            for stream in streams:
                await anext(stream)
            with monkeypatch.context() as patch:
                patch.setattr(llm.engine.worker, "launch", broken)
                errors = await asyncio.gather(*(rest(stream) for stream in streams), return_exceptions=True)
            assert engine.is_running
            return errors, await last(engine, "The whale")

    async def rest(stream):
        return [output async for output in stream]

    errors, after = asyncio.run(failing())
    assert [type(error) for error in errors] == [StepFailed, StepFailed]
    assert all(isinstance(error.__cause__, MemoryError) for error in errors)
    assert after.outputs[0].token_ids == wanted
    assert is_clean(llm)


def test_an_engine_that_cannot_even_let_go_is_dead_and_says_so(monkeypatch):
    llm = LLM("embedded", max_model_len=96, max_num_seqs=2, max_num_batched_tokens=32, kv_memory_bytes=1 << 24)

    async def dying():
        async with AsyncEngine.of(llm.engine) as engine:
            stream = engine.generate("The whale", ENDLESS)
            await anext(stream)
            monkeypatch.setattr(llm.engine, "abort", broken)
            monkeypatch.setattr(llm.engine.worker, "launch", broken)
            with pytest.raises(StepFailed):
                [output async for output in stream]
            await asyncio.to_thread(engine._serving.thread.join)
            assert not engine.is_running
            with pytest.raises(EngineStopped) as refused:
                await last(engine, "The whale")
            assert isinstance(refused.value.__cause__, MemoryError)

    asyncio.run(dying())


def test_closing_ends_those_who_wait_and_gives_the_engine_back(llm):
    async def closed():
        engine = AsyncEngine.of(llm.engine)
        await engine.start()
        stream = engine.generate("The whale", ENDLESS)
        await anext(stream)
        ending = asyncio.create_task(engine.close())
        with pytest.raises(EngineStopped):
            [output async for output in stream]
        await ending
        await engine.close()
        await engine.abort("anything")

    asyncio.run(closed())
    assert is_clean(llm)
    assert llm.generate("The whale", GREEDY)[0].finished


def test_an_engine_starts_again_after_it_was_closed(llm):
    async def twice():
        engine = AsyncEngine.of(llm.engine)
        for _ in range(2):
            async with engine:
                assert (await last(engine, "The whale")).finished

    asyncio.run(twice())


def test_who_is_not_served_is_told(llm):
    async def refusals():
        engine, open_stream = AsyncEngine.of(llm.engine), llm.stream("The whale", GREEDY)
        next(open_stream)
        with pytest.raises(MisuseError, match="at work for other calls"):
            await last(engine, "The whale")
        open_stream.close()
        async with engine:
            with pytest.raises(MisuseError, match="at work for an AsyncEngine"):
                llm.generate("The whale", GREEDY)
            with pytest.raises(MisuseError, match="at work"):
                await AsyncEngine.of(llm.engine).start()
            stream = engine.generate("The whale", ENDLESS, request_id="one")
            await anext(stream)
            with pytest.raises(RequestError, match="an id in use"):
                await last(engine, "The whale", request_id="one")
            await stream.aclose()

    asyncio.run(refusals())


@pytest.mark.parametrize(
    ("prompt", "params", "more", "says"),
    [
        ([1, 4096], GREEDY, {}, r"ids in \[0, 4096\)"),
        ("x" * 20_000, GREEDY, {}, "at most 95"),
        ("The whale", {"n": 1}, {}, "params: a dict"),
        ("The whale", GREEDY, {"priority": "high"}, "priority: a str"),
        ("The whale", GREEDY, {"request_id": 7}, "request_id: a int"),
        ("The whale", GREEDY, {"cache_salt": 7}, "salt: a int"),
    ],
)
def test_a_refused_request_disturbs_nobody(llm, prompt, params, more, says):
    wanted = llm.generate("My lord", GREEDY)[0].outputs[0].token_ids

    async def both():
        async with AsyncEngine.of(llm.engine) as engine:
            stream = engine.generate("My lord", GREEDY)
            outputs = [await anext(stream)]
            with pytest.raises(RequestError, match=says):
                await last(engine, prompt, params, **more)
            return outputs + [output async for output in stream]

    assert asyncio.run(both())[-1].outputs[0].token_ids == wanted
    assert is_clean(llm)


def test_who_is_first_in_priority_starts_first(llm, gate):
    """Four run, two wait: when one ends, the one that came last and is more urgent goes first."""
    short = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)

    async def order():
        ended = []
        async with AsyncEngine.of(llm.engine) as engine:

            async def consumer(name, params, priority):
                await last(engine, "The whale", params, priority=priority)
                ended.append(name)

            running = [consumer(f"long {i}", ENDLESS, 0) for i in range(3)] + [consumer("short", short, 0)]
            waiting = [consumer("later", GREEDY, 2), consumer("urgent", GREEDY, 1)]
            tasks = [asyncio.create_task(one) for one in running + waiting]
            await asyncio.sleep(0)  # all are queued
            gate.release(1000)
            await asyncio.gather(*tasks)
        return ended

    assert asyncio.run(order())[:3] == ["short", "urgent", "later"]
