"""Decode attention inside a runner: captured, replayed padded, and audited, with each backend."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from playhead.attention.base import AttentionBackend, LayerAttention
from playhead.attention.reference import ReferenceBackend
from playhead.attention.triton import TritonBackend
from playhead.graph import (
    BreakOp,
    Dispatcher,
    FullCapture,
    GraphRunner,
    OwnedMemory,
    SampledStep,
    StepSpec,
    TapeBackend,
    TensorSpec,
    audit,
)
from playhead.graph.capture import StepFn
from playhead.kernels.rope import qk_rope_write
from playhead.step.registries import build_decode_registry

BUCKET, PAGE_SIZE, PAGES_PER_ROW, WINDOW = 4, 4, 5, 6
MAX_TOKENS = PAGE_SIZE * PAGES_PER_ROW
NUM_PAGES = 1 + BUCKET * PAGES_PER_ROW
NUM_HEADS, HEAD_DIM, VOCABULARY = 4, 8, 11


class DecodeRig:
    """A step that looks up q, k and v by token id, writes k and v, and attends. Row r owns PAGES_PER_ROW pages."""

    def __init__(self, backend_name: str) -> None:
        rng = torch.Generator().manual_seed(0)
        pages = torch.arange(1, NUM_PAGES, dtype=torch.int32).flip(0).view(BUCKET, PAGES_PER_ROW)
        self.table = torch.cat((torch.zeros(1, PAGES_PER_ROW, dtype=torch.int32), pages))
        self.caches = [torch.randn(NUM_PAGES, PAGE_SIZE, 1, HEAD_DIM, generator=rng) for _ in "kv"]
        self.layer = LayerAttention(
            num_heads=NUM_HEADS,
            num_kv_heads=1,
            k_head_dim=HEAD_DIM,
            v_head_dim=HEAD_DIM,
            scale=0.3,
            k_cache_NSKD=self.caches[0],
            v_cache_NSKE=self.caches[1],
            window=WINDOW,
        )
        self.backend: AttentionBackend = (
            ReferenceBackend(self.table)
            if backend_name == "reference"
            else TritonBackend(self.table, [self.layer], max_bs=BUCKET)
        )
        self.qkv = torch.randn(VOCABULARY, (NUM_HEADS + 2) * HEAD_DIM, generator=rng)
        self.registry = build_decode_registry(max_bs=BUCKET, device="cpu")
        memory = (
            OwnedMemory(name="weights", tensors=(self.qkv,)),
            OwnedMemory(name="kv", tensors=tuple(self.caches), writable=True, sink_rows=1),
        )
        step = StepSpec(
            name="decode",
            axis="bs",
            fn=self.step_fn(f"playhead_test::attend_{backend_name}"),
            plan=lambda batch, ctx, inputs: self.backend.plan(inputs),
            placeholder=self.registry.null_batch,
            owned=(*self.backend.owned(), *memory),
        )
        capture = FullCapture()
        self.runner = GraphRunner(
            step,
            registry=self.registry,
            capture=capture,
            backend=TapeBackend(),
            dispatcher=Dispatcher(capture.mode, (BUCKET,)),
        )

    def step_fn(self, name: str) -> StepFn:
        attention = BreakOp(
            name,
            run=lambda plan, q, out, site: self.backend.attend(plan, self.layer, q[0], out[0]),
            outputs=lambda q: [TensorSpec(shape=tuple(q[0].shape), dtype=q[0].dtype)],
        )

        def step(inputs, scope):
            qkv = self.qkv[inputs["input_ids"].long()]
            q, k, v = (
                part.unflatten(1, (-1, HEAD_DIM)) for part in qkv.split((NUM_HEADS * HEAD_DIM, HEAD_DIM, HEAD_DIM), 1)
            )
            q = q.contiguous()
            as_they_are = (None, None, None, inputs["positions"])
            qk_rope_write(q, k, v, *as_they_are, *self.caches, inputs["out_cache_loc"], 0.0, False, False)
            return scope.call(attention, q, site=0)[0]

        return step

    def sample(self, raw: int, seed: int) -> SampledStep:
        """`raw` requests in rows of their own, of any length."""
        rng = np.random.default_rng(seed)
        rows = rng.permutation(BUCKET)[:raw].astype(np.int32) + 1
        lengths = rng.integers(1, MAX_TOKENS + 1, raw, dtype=np.int32)
        last = lengths - 1
        locs = self.table.numpy()[rows, last // PAGE_SIZE] * PAGE_SIZE + last % PAGE_SIZE
        batch = {
            "input_ids": rng.integers(0, VOCABULARY, raw, dtype=np.int32),
            "positions": last,
            "out_cache_loc": locs,
            "req_pool_indices": rows,
            "seq_lens": lengths,
        }
        return SampledStep(batch=batch, raw_bs=raw, raw_num_tokens=raw)


@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_a_captured_decode_passes_the_audit(backend):
    """Ownership, poisoned tails, replay against eager and capture against capture, at every raw size."""
    rig = DecodeRig(backend)
    rig.runner.capture_all()
    assert audit(rig.runner, rig.sample).findings == []
