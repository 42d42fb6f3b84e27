"""Attention's output in parts on a GPU: against a reference in float32, and through the engine's graphs."""

from __future__ import annotations

import pytest
import torch

import playhead.attention.triton
from playhead.engine.config import EngineConfig
from playhead.engine.engine import Engine
from playhead.kernels.attention import left_width, write_and_decode
from playhead.kernels.projection import project_normed
from playhead.kernels.splits import DecodeShape, num_splits, parts_left
from playhead.kv.plan import KVLimits
from playhead.models.text.ids_only import IdsOnlyTokenizer
from playhead.testing.mutant import swapped
from playhead.testing.tiny_engine import Ask, drawn, greedy, run_schedule
from playhead.testing.tiny_worker import TINY_GEMMA3, tiny_worker
from tests.gpu.test_kernels_gpu import check, in_float32
from tests.unit.kernels.test_newest import random_call

MODELS = {
    "Gemma-3-1B": ((4, 1), (256, 256, 128), 1152, 512),
    "Gemma-3-1B, full": ((4, 1), (256, 256, 128), 1152, None),
    "Llama-3.2-1B": ((32, 8), (64, 64, 32), 2048, None),
}
WIDE = {**TINY_GEMMA3, "head_dim": 256, "num_attention_heads": 4, "hidden_size": 256, "sliding_window": 100}
LIMITS = KVLimits(max_context_tokens=768, max_running=2, chunk_tokens=256)
ASKS = (
    Ask(name="alone", prompt=tuple(range(3, 60)), params=greedy(260)),
    Ask(name="beside", prompt=(3, 4, 5), params=drawn(30, seed=1), comes=40),
)


@pytest.mark.parametrize("seq_len", [1, 2, 33, 200, 900, 3900])
@pytest.mark.parametrize("model", MODELS)
def test_a_projection_of_parts_is_that_of_attention_in_float32(model, seq_len, capsys):
    heads, dims, hidden, window = MODELS[model]
    shape = DecodeShape(num_heads=heads[0], num_kv_heads=heads[1], v_head_dim=dims[1], max_keys=window or 4096)
    options = {"norm": "head", "page_size": 16, "num_splits": num_splits(shape, 1), "window": window}
    num_left, num_inputs = parts_left(shape, 1), heads[0] * dims[1]
    assert num_left
    call = [
        one.cuda() if isinstance(one, torch.Tensor) else one for one in random_call([seq_len], heads, dims, **options)
    ]
    for position in (0, 1, 2, 3, 10, 11):  # the projection, the outputs, the norms' weights, the caches
        call[position] = None if call[position] is None else call[position].bfloat16()
    wanted = in_float32(call)
    wanted[10:12] = [cache.clone() for cache in wanted[10:12]]
    call[0], call[5:7], call[13:15] = call[0][:1], [one[:1] for one in call[5:7]], [one[:1] for one in call[13:15]]
    call[1] = torch.full((1, left_width(heads[0], dims[1], num_left)), float("nan"), device="cuda")
    call[21] = torch.zeros(heads[1] * num_left, dtype=torch.int32, device="cuda")
    call[-1] = num_left
    write_and_decode.reference(*wanted)
    rng = torch.Generator(device="cuda").manual_seed(1)
    first, second = (
        0.03 * torch.randn(shape, generator=rng, device="cuda", dtype=torch.bfloat16)
        for shape in ((hidden, num_inputs), (3072, hidden))
    )
    residual = torch.randn(1, hidden, generator=rng, device="cuda", dtype=torch.bfloat16)
    norm = torch.randn(hidden, generator=rng, device="cuda", dtype=torch.bfloat16)
    rest = (None, 1.0, residual, norm, norm, 1e-6, True, False, second, None, None)
    outs = []
    for _ in range(20):
        write_and_decode(*call)
        out = torch.full((1, 3072), float("nan"), dtype=torch.bfloat16, device="cuda")
        total = project_normed(out, call[1], first, *rest, num_left)
        outs.append(torch.cat((out, total), dim=1))
    assert not call[21].any()
    assert all(torch.equal(one, outs[0]) for one in outs)
    wanted_out = torch.empty(1, 3072, device="cuda")
    wide = [one.float() if isinstance(one, torch.Tensor) else one for one in rest]
    wanted_total = project_normed.reference(wanted_out, wanted[1][:1], first.float(), *wide)
    check(f"parts {model} {seq_len} sum", outs[0][:, 3072:], wanted_total, capsys, bound=1e-2)
    check(f"parts {model} {seq_len}", outs[0][:, :3072], wanted_out, capsys, bound=1e-2)


def test_tokens_of_an_engine_that_leaves_parts_are_those_of_one_that_merges():
    """In float32, through graphs of one request and of two."""
    found = []
    for rule in (parts_left, lambda shape, num_requests: 0):
        with swapped(playhead.attention.triton, "parts_left", rule):
            worker = tiny_worker(model=WIDE, device="cuda", page_size=16, limits=LIMITS, kv_memory_bytes=1 << 25)
            engine = Engine(worker, IdsOnlyTokenizer(), config=EngineConfig(seed=0))
            found.append(run_schedule(engine, ASKS))
            assert any(mode.startswith("full") for mode in engine.stats.modes)
            left = {worker.model.backend.parts_left(layer, 1) for layer in worker.model.layers}
            assert (left == {0}) is (rule is not parts_left)
    assert found[0] == found[1]
