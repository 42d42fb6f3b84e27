"""Attention in bf16 on the GPU: against a float32 reference, run to run, and captured against eager.

Everything a query may not see is NaN in these steps. Error norms are printed: ||out - ref|| / ||ref||.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from playhead.attention.base import LENGTHS_SLOT, Phase
from playhead.attention.reference import ReferenceBackend
from playhead.attention.triton import TritonBackend
from playhead.graph.backends.base import record
from playhead.graph.backends.cuda import CudaBackend
from tests.unit.attention.scenes import Scene, SceneSpec, make_scene, relative_error

# Outputs are bf16, whose own rounding is 2e-3; weights are rounded to bf16 before they meet the values.
ERROR_BOUND = 1e-2

GEMMA_1B = {"num_kv_heads": 1, "group_size": 4, "k_head_dim": 256, "v_head_dim": 256}
GEMMA_2 = {"num_kv_heads": 4, "group_size": 2, "k_head_dim": 256, "v_head_dim": 256, "softcap": 50.0}
LLAMA_1B = {"num_kv_heads": 8, "group_size": 4, "k_head_dim": 64, "v_head_dim": 64}
QWEN3 = {"num_kv_heads": 8, "group_size": 2, "k_head_dim": 128, "v_head_dim": 128}
GPT_OSS = {"num_kv_heads": 8, "group_size": 8, "k_head_dim": 64, "v_head_dim": 64, "has_sinks": True}
MIMO = {"num_kv_heads": 4, "group_size": 16, "k_head_dim": 192, "v_head_dim": 128, "has_sinks": True}
ODD = {"num_kv_heads": 3, "group_size": 5, "k_head_dim": 80, "v_head_dim": 80}

LAYERS = {
    "gemma-1b full page 16": GEMMA_1B | {"page_size": 16},
    "gemma-1b full page 1": GEMMA_1B | {"page_size": 1},
    "gemma-1b window page 16": GEMMA_1B | {"page_size": 16, "window": 512, "has_own_pool": True},
    "gemma-1b window page 1": GEMMA_1B | {"page_size": 1, "window": 512, "has_own_pool": True},
    "gemma-2 softcap page 64": GEMMA_2 | {"page_size": 64},
    "llama-1b page 16": LLAMA_1B | {"page_size": 16},
    "qwen3 page 16": QWEN3 | {"page_size": 16},
    "gpt-oss sinks window": GPT_OSS | {"page_size": 16, "window": 128, "has_own_pool": True},
    "mimo k 192 v 128": MIMO | {"page_size": 16, "window": 128, "has_own_pool": True},
    "odd heads and dims": ODD | {"page_size": 16, "window": 33},
    "window of one": QWEN3 | {"page_size": 16, "window": 1, "has_own_pool": True},
}
DECODE_LENGTHS = (1, 15, 16, 17, 511, 512, 513, 1300, 5000)
EXTEND_LENGTHS = ((700, 700), (1, 1), (900, 1), (1500, 40), (513, 200), (33, 0), (64, 64))


def decode_scene(features, seed=0, lengths=DECODE_LENGTHS) -> Scene:
    spec = SceneSpec(seq_lens=lengths, num_null=3, **features)
    return make_scene(spec, seed, dtype=torch.bfloat16, device="cuda")


def extend_scene(features, seed=0) -> Scene:
    seq_lens, query_lens = zip(*EXTEND_LENGTHS, strict=True)
    spec = SceneSpec(seq_lens=seq_lens, query_lens=query_lens, num_null=3, **features)
    return make_scene(spec, seed, dtype=torch.bfloat16, device="cuda")


def in_float32(scene: Scene) -> torch.Tensor:
    """The live rows of the reference, computed in float32 from the same bf16 numbers."""
    layer = replace(
        scene.layer,
        k_cache_NSKD=scene.layer.k_cache_NSKD.float(),
        v_cache_NSKE=scene.layer.v_cache_NSKE.float(),
    )
    scene = replace(scene, q=scene.q.float(), layer=layer)
    backend = ReferenceBackend(scene.plan.page_table_RP)
    return run(backend, scene)


def run(backend, scene: Scene) -> torch.Tensor:
    out = scene.new_out()
    (backend.decode if scene.plan.phase is Phase.DECODE else backend.extend)(scene.plan, scene.layer, scene.q, out)
    return out[: scene.num_live]


def triton_for(scene: Scene) -> TritonBackend:
    return TritonBackend(scene.plan.page_table_RP, [scene.layer], max_bs=scene.plan.rows_B.shape[0])


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("make", [decode_scene, extend_scene], ids=["decode", "extend"])
def test_error_norm_is_that_of_bf16(name, make, capsys):
    scene = make(LAYERS[name], seed=len(name))
    error = relative_error(run(triton_for(scene), scene), in_float32(scene))
    with capsys.disabled():
        print(f"\n{make.__name__.removesuffix('_scene'):<7} {name:<26} error norm {error:.2e}", end="")
    assert error < ERROR_BOUND


@pytest.mark.parametrize(
    ("name", "num_requests"), [("llama-1b page 16", 33), ("qwen3 page 16", 90), ("gemma-2 softcap page 64", 130)]
)
def test_many_requests_of_any_lengths_start_in_the_order_of_these(name, num_requests, capsys):
    """Small programs, of which more run at once. Two runs, and a run without an order, give the same bits."""
    rng = torch.Generator().manual_seed(num_requests)
    lengths = tuple(torch.randint(1, 1300, (num_requests,), generator=rng).tolist())
    scene = decode_scene(LAYERS[name], lengths=lengths)
    backend, seq_lens_B = triton_for(scene), scene.plan.seq_lens_B
    ((order_B,),) = backend.prepare((scene.layer,), None, {LENGTHS_SLOT: seq_lens_B})
    assert torch.equal(order_B.long(), seq_lens_B.argsort(descending=True, stable=True))
    outs = [scene.new_out() for _ in range(3)]
    for out, prepared in zip(outs, ((order_B,), (order_B,), ()), strict=True):
        backend.decode(scene.plan, scene.layer, scene.q, out, prepared)
    first, *others = (out[: scene.num_live] for out in outs)
    assert all(torch.equal(other, first) for other in others)
    error = relative_error(first, in_float32(scene))
    with capsys.disabled():
        print(f"\n{num_requests} requests, {name:<26} error norm {error:.2e}", end="")
    assert error < ERROR_BOUND


@pytest.mark.parametrize("name", ["gemma-1b full page 16", "gemma-1b window page 1", "gpt-oss sinks window"])
@pytest.mark.parametrize("make", [decode_scene, extend_scene], ids=["decode", "extend"])
def test_two_runs_give_the_same_bits(name, make):
    scene = make(LAYERS[name])
    backend = triton_for(scene)
    first = run(backend, scene)
    assert all(torch.equal(run(backend, scene), first) for _ in range(20))


@pytest.mark.parametrize("name", ["gemma-1b full page 16", "gemma-1b window page 1", "qwen3 page 16"])
def test_a_captured_decode_gives_the_bits_of_an_eager_one(name):
    """Also after the lengths changed: how many splits have keys is decided on the device."""
    scene = decode_scene(LAYERS[name])
    backend, out = triton_for(scene), scene.new_out()
    backend.decode(scene.plan, scene.layer, scene.q, out)  # compiles outside the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        backend.decode(scene.plan, scene.layer, scene.q, out)
    # A window layer's memory holds no keys from before its window, so only full layers can step back.
    for shift in (0, 1, 7) if scene.spec.window is None else (0,):
        scene.plan.seq_lens_B.copy_((scene.plan.seq_lens_B - shift).clamp_min(1))
        out.fill_(float("nan"))
        graph.replay()
        eager = scene.new_out()
        backend.decode(scene.plan, scene.layer, scene.q, eager)
        torch.testing.assert_close(out, eager, rtol=0, atol=0, equal_nan=True)


def test_a_recording_sees_decode_as_one_op():
    scene = decode_scene(LAYERS["gemma-1b window page 16"])
    backend, out = triton_for(scene), scene.new_out()
    recording, _ = record(CudaBackend(), lambda: backend.decode(scene.plan, scene.layer, scene.q, out))
    assert [op.name for op in recording.log.ops if not op.is_view] == ["playhead::decode.default"]
    out.fill_(float("nan"))
    recording.replay()
    assert torch.equal(out[: scene.num_live], run(backend, scene))


def test_neighbours_do_not_change_a_requests_bits():
    """Same batch size, other requests around it: a request's own keys decide its result."""
    features = LAYERS["qwen3 page 16"]
    scene = decode_scene(features, lengths=(700, 300, 900))
    backend = triton_for(scene)
    alone = run(backend, scene)[0].clone()
    scene.plan.seq_lens_B[1:3] = torch.tensor([1, 5], dtype=torch.int32, device="cuda")
    assert torch.equal(run(backend, scene)[0], alone)


def test_scratch_is_ready_for_the_next_launch():
    scene = decode_scene(LAYERS["gemma-1b full page 16"])
    backend = triton_for(scene)
    run(backend, scene)
    arrivals = next(owned for owned in backend.owned() if owned.writable).tensors[2]
    assert not arrivals.any()
