"""Misuse is refused with one typed error that says what to do; whoever used the engine rightly notices nothing."""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading

import pytest

from playhead.engine.async_engine import AsyncEngine
from playhead.errors import MisuseError
from playhead.llm import LLM
from playhead.sampling_params import SamplingParams
from playhead.testing.fault_runs import leftovers

PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
SMALL = {"max_model_len": 96, "max_num_seqs": 2, "kv_memory_bytes": 1 << 23, "graph_mode": "eager"}


@pytest.fixture(scope="module")
def llm():
    with LLM("embedded", **SMALL) as made:
        yield made


@pytest.fixture(scope="module")
def wanted(llm):
    return llm.generate("The whale", PARAMS)[0].outputs[0].token_ids


def raised_in_a_thread(work) -> BaseException | None:
    raised: list[BaseException | None] = [None]

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  it is what the test is about
            raised[0] = error

    thread = threading.Thread(target=run, name="second")
    thread.start()
    thread.join()
    return raised[0]


USES = {
    "generate": lambda llm: llm.generate("Call me", PARAMS),
    "stream": lambda llm: next(llm.stream("Call me", PARAMS)),
    "step": lambda llm: llm.engine.step(),
    "abort": lambda llm: llm.engine.abort("r1"),
    "close": lambda llm: llm.close(),
    "capture_graphs": lambda llm: llm.capture_graphs(),
}


def test_an_idle_llm_may_be_used_by_one_thread_after_the_other(llm, wanted):
    outputs = []
    for _ in range(2):
        assert raised_in_a_thread(lambda: outputs.append(llm.generate("The whale", PARAMS)[0])) is None
    outputs.append(llm.generate("The whale", PARAMS)[0])
    assert [output.outputs[0].token_ids for output in outputs] == [wanted] * 3


def test_the_requests_of_a_thread_that_is_gone_keep_nobody_out(llm, wanted):
    streams = []
    assert raised_in_a_thread(lambda: streams.append(llm.stream("Call me", PARAMS)) or next(streams[0])) is None
    assert llm.generate("The whale", PARAMS)[0].outputs[0].token_ids == wanted
    assert list(streams[0])[-1].finished


def test_a_stream_that_two_threads_share_refuses_the_second(llm, monkeypatch):
    stream = llm.stream("The whale", PARAMS)
    launch, errors = llm.engine.worker.launch, []

    def launch_beside_another(chunks):
        errors.append(raised_in_a_thread(lambda: next(stream)))
        return launch(chunks)

    with monkeypatch.context() as patched:
        patched.setattr(llm.engine.worker, "launch", launch_beside_another)
        next(stream)
    assert isinstance(errors[0], MisuseError)
    assert list(stream)[-1].finished


def test_a_call_from_within_a_step_is_refused(llm, wanted, monkeypatch):
    launch, errors = llm.engine.worker.launch, []

    def launch_and_call_back(chunks):
        with pytest.raises(MisuseError, match="from within its own step") as raised:
            llm.generate("Call me", PARAMS)
        errors.append(raised.value)
        return launch(chunks)

    with monkeypatch.context() as patched:
        patched.setattr(llm.engine.worker, "launch", launch_and_call_back)
        assert llm.generate("The whale", PARAMS)[0].outputs[0].token_ids == wanted
    assert errors
    assert leftovers(llm.engine) == []


def test_a_call_from_within_a_capture_is_refused():
    with LLM("embedded", max_model_len=32, max_num_seqs=1, max_num_batched_tokens=4, kv_memory_bytes=1 << 23) as llm:
        with pytest.raises(MisuseError):
            llm.capture_graphs(lambda report: llm.generate("Call me", PARAMS) and None)
        assert llm.generate("The whale", PARAMS)[0].outputs[0].finish_reason is not None


@pytest.mark.parametrize("send", [pickle.dumps, copy.deepcopy])
@pytest.mark.parametrize("owner", [lambda llm: llm, lambda llm: AsyncEngine.of(llm.engine)], ids=["LLM", "AsyncEngine"])
def test_an_engine_that_is_sent_elsewhere_says_that_it_stays(llm, wanted, owner, send):
    with pytest.raises(MisuseError, match="make another there"):
        send(owner(llm))
    assert llm.generate("The whale", PARAMS)[0].outputs[0].token_ids == wanted


def test_a_loop_over_a_stream_may_generate(llm, wanted):
    """That is no misuse: between two outputs nothing runs."""
    inner = [llm.generate("The whale", PARAMS)[0].outputs[0].token_ids for _ in llm.stream("Call me", PARAMS)]
    assert inner == [wanted] * PARAMS.max_tokens


@pytest.mark.parametrize("use", [use for use in USES if use != "close"])
def test_a_closed_llm_says_so(use):
    llm = LLM("embedded", **SMALL)
    llm.close()
    llm.close()
    with pytest.raises(MisuseError, match="used after close"):
        USES[use](llm)
    assert llm.stats.num_steps == 0


def test_an_engine_that_somebody_kept_is_closed_with_its_llm():
    llm = LLM("embedded", **SMALL)
    engine = llm.engine
    llm.close()
    with pytest.raises(MisuseError, match="used after close"):
        engine.step()


@pytest.mark.parametrize("use", list(USES))
def test_an_engine_that_serves_an_event_loop_refuses_everybody_else_even_when_idle(llm, wanted, use):
    async def intrude() -> None:
        async with AsyncEngine.of(llm.engine) as engine:
            with pytest.raises(MisuseError, match="at work for an AsyncEngine"):
                USES[use](llm)
            outputs = [output async for output in engine.generate("The whale", PARAMS)]
            assert outputs[-1].outputs[0].token_ids == wanted

    asyncio.run(intrude())
    assert llm.generate("The whale", PARAMS)[0].outputs[0].token_ids == wanted
