"""A closed or dropped LLM gives the device its memory back by itself. The garbage collector is off."""

from __future__ import annotations

import gc

import pytest
import torch

from playhead.engine.config import EngineConfig
from playhead.engine.memory import usable_bytes
from playhead.llm import LLM
from playhead.sampling_params import SamplingParams

KV_BYTES = 1 << 30


def used_llm() -> LLM:
    llm = LLM("embedded", max_model_len=64, max_num_seqs=4, kv_memory_bytes=KV_BYTES)
    llm.generate(["The whale", "Call me"], SamplingParams(max_tokens=8, seed=1))
    return llm


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "dropped"])
def test_an_llm_with_captured_graphs_leaves_no_tensor_on_the_device(is_closed):
    used_llm().close()  # libraries take their workspaces once
    gc.collect()
    torch.cuda.empty_cache()
    gc.disable()
    try:
        before = torch.cuda.memory_allocated()
        llm = used_llm()
        assert torch.cuda.memory_allocated() - before > KV_BYTES // 2
        if is_closed:
            llm.close()
        del llm
        assert torch.cuda.memory_allocated() - before < KV_BYTES // 64, "KV memory, weights or graphs are kept"
    finally:
        gc.enable()


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "dropped"])
def test_the_next_engine_may_plan_with_the_memory_of_the_last_one(is_closed):
    device, config = torch.device("cuda"), EngineConfig(kv_memory_bytes=KV_BYTES)  # then all that is free counts
    used_llm().close()  # libraries and kernels take their memory once
    gc.collect()
    gc.disable()
    try:
        before = usable_bytes(config, device)
        llm = used_llm()
        if is_closed:
            llm.close()
        del llm
        assert before - usable_bytes(config, device) < KV_BYTES // 8
    finally:
        gc.enable()
