"""A closed or dropped LLM gives its memory back by itself. The garbage collector is off in every test here."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from playhead.engine.async_engine import AsyncEngine
from playhead.llm import LLM
from playhead.sampling_params import SamplingParams
from playhead.testing.faults import injected
from playhead.types import Mode

PARAMS = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


@pytest.fixture(autouse=True)
def _no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def used_llm(mode: Mode) -> LLM:
    llm = LLM("embedded", max_model_len=64, max_num_seqs=2, kv_memory_bytes=1 << 23, graph_mode=mode, overlap=True)
    llm.generate(["The whale", "Call me"], PARAMS)
    llm.generate("The whale", SamplingParams(max_tokens=4, seed=1, frequency_penalty=0.5))
    return llm


def alive_parts(llm: LLM) -> dict[str, weakref.ref[object]]:
    worker = llm.engine.worker
    k_pages, _ = worker.pool.get_kv_buffer(0)
    parts: dict[str, object] = {
        "engine": llm.engine,
        "worker": worker,
        "decoder": worker.model.decoder,
        "KV cache": worker.kv,
        "KV memory": k_pages if k_pages._base is None else k_pages._base,
        "weights": next(iter(worker.model.decoder.parameters())),
        "prefill graphs": worker.prefill,
    }
    parts |= {f"decode graphs {index}": runner for index, runner in enumerate(worker.decoders.values())}
    captured = [step for runner in worker.runners for step in runner.captured.values()]
    parts |= {f"graph {index}": step for index, step in enumerate(captured)}
    return {name: weakref.ref(part) for name, part in parts.items()}


def survivors(parts: dict[str, weakref.ref[object]]) -> list[str]:
    return [name for name, part in parts.items() if part() is not None]


MODES = [Mode.EAGER, Mode.BREAKABLE, Mode.FULL]


@pytest.mark.parametrize("mode", MODES)
def test_a_closed_llm_keeps_no_memory(mode):
    llm = used_llm(mode)
    parts = alive_parts(llm)
    llm.close()
    assert survivors(parts) == []
    assert llm.stats.num_steps > 0


@pytest.mark.parametrize("mode", MODES)
def test_a_dropped_llm_keeps_no_memory(mode):
    llm = used_llm(mode)
    parts = alive_parts(llm)
    del llm
    assert survivors(parts) == []


def test_a_dropped_llm_with_an_open_stream_goes_with_the_stream():
    llm = used_llm(Mode.EAGER)
    parts, stream = alive_parts(llm), llm.stream("The whale", PARAMS)
    next(stream)
    del llm
    assert survivors(parts)
    del stream
    assert survivors(parts) == []


def test_a_failed_step_keeps_no_memory_once_its_error_is_gone():
    llm = used_llm(Mode.EAGER)
    parts = alive_parts(llm)
    with injected("launch", MemoryError, 60), pytest.raises(MemoryError):
        llm.generate("My fellow citizens,", PARAMS)
    llm.close()
    assert survivors(parts) == []


def test_a_dropped_async_engine_keeps_no_memory():
    llm = used_llm(Mode.EAGER)
    parts, engine = alive_parts(llm), AsyncEngine.of(llm.engine)
    del llm

    async def ask(engine: AsyncEngine) -> None:
        async with engine:
            async for _ in engine.generate("The whale", PARAMS):
                pass

    asyncio.run(ask(engine))
    assert survivors(parts)
    del engine
    assert survivors(parts) == []
