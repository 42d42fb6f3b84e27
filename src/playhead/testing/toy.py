"""A small transformer-shaped step with a real KV write and real attention metadata, for captures of every kind.

Shapes: T tokens, R requests, M hidden size, L keys at most, S KV locations.

The stack is `h = h + attention(h) ; h = h + relu(h @ up)` per layer. Attention writes keys at `out_cache_loc`, then
each token attends to the keys of its own request up to its own position, through a table of locations per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from playhead.graph.audit import Sample, SampledStep
from playhead.graph.breaks import BreakOp, Scope, Tensors, TensorSpec
from playhead.graph.capture import Inputs
from playhead.graph.registry import CudaGraphBufferRegistry
from playhead.graph.slots import Batch, FillContext, IndexSpace, host_vector
from playhead.graph.spec import OwnedMemory, RunAxis, StepSpec

KV_LOCS = IndexSpace(name="kv locations", dtype=torch.int32)
ROWS = IndexSpace(name="table rows", dtype=torch.int32)
POSITIONS = IndexSpace(name="positions", dtype=torch.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyShape:
    """How large a toy is. Row 0 of the table and location 0 of the cache are the sink."""

    num_layers: int = 3
    hidden: int = 16
    num_rows: int = 17
    max_keys: int = 24
    vocab: int = 50
    dtype: torch.dtype = torch.float32

    @property
    def num_locs(self) -> int:
        return 1 + (self.num_rows - 1) * self.max_keys


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyPlan:
    """The requests of one step: their rows, where their tokens end in the batch, and the keys each had before.

    A decode step has one token per request and reads its slots directly; `ends_R` is None then.
    """

    rows_R: torch.Tensor
    lens_R: torch.Tensor
    ends_R: torch.Tensor | None
    locs_T: torch.Tensor
    num_tokens: int

    def tensors(self) -> tuple[torch.Tensor, ...]:
        ends = () if self.ends_R is None else (self.ends_R,)
        return (self.rows_R, self.lens_R, self.locs_T, *ends)


class ToyModel:
    """Weights, KV memory, the table of locations, and the step over them."""

    def __init__(self, shape: ToyShape, device: torch.device | str = "cpu", seed: int = 0) -> None:
        self.shape, self.device = shape, torch.device(device)
        generator = torch.Generator().manual_seed(seed)

        def weight(*size: int) -> torch.Tensor:
            return (torch.randn(*size, generator=generator) * 0.3).to(device=self.device, dtype=shape.dtype)

        self.embed_VM = weight(shape.vocab, shape.hidden)
        self.layers = [
            {"qkv": weight(shape.hidden, 3 * shape.hidden), "up": weight(shape.hidden, shape.hidden)}
            for _ in range(shape.num_layers)
        ]
        cache = (shape.num_layers, shape.num_locs, shape.hidden)
        self.k_cache = torch.zeros(cache, device=self.device, dtype=shape.dtype)
        self.v_cache = torch.zeros(cache, device=self.device, dtype=shape.dtype)
        locs = torch.arange(shape.num_locs - 1, dtype=torch.int32).view(shape.num_rows - 1, shape.max_keys) + 1
        sink = torch.zeros(1, shape.max_keys, dtype=torch.int32)
        self.table_RL = torch.cat([sink, locs]).to(self.device)
        self.key_index_L = torch.arange(shape.max_keys, device=self.device)
        self.attention = BreakOp("playhead_toy::attention", run=self._attend, outputs=lambda i: [TensorSpec.like(i[0])])

    @property
    def owned(self) -> tuple[OwnedMemory, ...]:
        """All memory the step may touch besides its slots. Layers come first in the cache, so locations are dim 1."""
        weights = (self.embed_VM, *(tensor for layer in self.layers for tensor in layer.values()))
        cache = tuple(layer for cache in (self.k_cache, self.v_cache) for layer in cache)
        return (
            OwnedMemory(name="weights", tensors=weights),
            OwnedMemory(name="kv", tensors=cache, writable=True, sink_rows=1),
            OwnedMemory(name="location table", tensors=(self.table_RL, self.key_index_L)),
        )

    def forward(self, inputs: Inputs, scope: Scope) -> torch.Tensor:
        """Hidden states, one row per token."""
        h_TM = self.embed_VM[inputs["input_ids"]]
        h_TM = h_TM + torch.sin(inputs["positions"].to(h_TM.dtype)).unsqueeze(1)
        for i, layer in enumerate(self.layers):
            q_TM, k_TM, v_TM = (h_TM @ layer["qkv"]).chunk(3, dim=-1)
            (a_TM,) = scope.call(self.attention, q_TM, k_TM, v_TM, site=i)
            h_TM = h_TM + a_TM
            h_TM = h_TM + torch.relu(h_TM @ layer["up"])
        return h_TM

    def _attend(self, plan: ToyPlan, inputs: Tensors, outputs: Tensors, site: int) -> None:
        """Write this step's keys, then attend. Rows of the output after the step's tokens are left alone."""
        layer, n = site, plan.num_tokens
        q_TM, k_TM, v_TM = (tensor[:n] for tensor in inputs)
        k_cache, v_cache = self.k_cache[layer], self.v_cache[layer]
        k_cache[plan.locs_T[:n]] = k_TM
        v_cache[plan.locs_T[:n]] = v_TM
        rows_T, lens_T = self._per_token(plan)
        locs_TL = self.table_RL[rows_T]
        keys_TLM, values_TLM = k_cache[locs_TL], v_cache[locs_TL]
        scores_TL = torch.einsum("tm,tlm->tl", q_TM, keys_TLM) * self.shape.hidden**-0.5
        hidden_TL = self.key_index_L >= lens_T.unsqueeze(1)
        weights_TL = scores_TL.masked_fill(hidden_TL, float("-inf")).softmax(-1)
        values_TLM = values_TLM.masked_fill(hidden_TL.unsqueeze(-1), 0)
        outputs[0][:n].copy_(torch.einsum("tl,tlm->tm", weights_TL, values_TLM))

    def _per_token(self, plan: ToyPlan) -> tuple[torch.Tensor, torch.Tensor]:
        """Row and visible keys of each token. In a prefill, token j of a request sees the keys before it and itself."""
        if plan.ends_R is None:
            return plan.rows_R, plan.lens_R
        index_T = torch.arange(plan.num_tokens, device=self.device, dtype=torch.int32)
        request_T = torch.searchsorted(plan.ends_R, index_T, right=True)
        after_T = plan.ends_R[request_T] - 1 - index_T
        return plan.rows_R[request_T], plan.lens_R[request_T] - after_T

    def step(self, axis: RunAxis, registry: CudaGraphBufferRegistry) -> StepSpec:
        """The step over this model. Decode (`bs`) has one token per request; prefill (`tokens`) any number."""

        def plan(batch: Batch, ctx: FillContext, inputs: Inputs) -> ToyPlan:
            ends = None
            if axis == "tokens":
                ends = torch.cumsum(torch.as_tensor(batch["extend_lens"]), 0, dtype=torch.int32).to(self.device)
            num_tokens = ctx.padded_num_tokens if axis == "bs" else ctx.raw_num_tokens
            rows, lens, locs = inputs["req_pool_indices"], inputs["seq_lens"], inputs["out_cache_loc"]
            return ToyPlan(rows_R=rows, lens_R=lens, ends_R=ends, locs_T=locs, num_tokens=num_tokens)

        def placeholder(ctx: FillContext) -> Batch:
            batch = registry.null_batch(ctx)
            if axis == "tokens":
                batch["extend_lens"] = np.array([ctx.raw_num_tokens], dtype=np.int32)
                batch["seq_lens"] = np.array([min(ctx.raw_num_tokens, self.shape.max_keys)], dtype=np.int32)
            return batch

        return StepSpec(
            name=f"toy {axis}", axis=axis, fn=self.forward, plan=plan, placeholder=placeholder, owned=self.owned
        )

    def batch(self, requests: Sequence[ToyRequest], *, axis: RunAxis) -> dict[str, Any]:
        """The step's values for these requests: each brings its new tokens, all others are in the cache."""
        table = self.table_RL.cpu().numpy()
        locs = [table[r.row, r.num_cached : r.num_cached + len(r.tokens)] for r in requests]
        positions = [np.arange(r.num_cached, r.num_cached + len(r.tokens)) for r in requests]
        values: dict[str, Any] = {
            "input_ids": np.concatenate([np.asarray(r.tokens) for r in requests]).astype(np.int64),
            "positions": np.concatenate(positions).astype(np.int64),
            "out_cache_loc": np.concatenate(locs).astype(np.int32),
            "req_pool_indices": np.array([r.row for r in requests], dtype=np.int32),
            "seq_lens": np.array([r.num_cached + len(r.tokens) for r in requests], dtype=np.int32),
        }
        if axis == "tokens":
            values["extend_lens"] = np.array([len(r.tokens) for r in requests], dtype=np.int32)
        return values

    def sample(self, axis: RunAxis) -> Sample:
        """Random valid steps for the audit: requests with random histories, each in a row of its own."""

        def make(raw: int, seed: int) -> SampledStep:
            rng = np.random.default_rng((seed, raw))
            fewest = -(-raw // (self.shape.max_keys // 2))
            num_requests = raw if axis == "bs" else min(raw, fewest + seed, self.shape.num_rows - 1)
            cuts = np.linspace(0, raw, num_requests + 1).astype(int)
            rows = rng.permutation(self.shape.num_rows - 1)[:num_requests] + 1
            requests = []
            for row, num_new in zip(rows, np.diff(cuts), strict=True):
                num_cached = int(rng.integers(0, self.shape.max_keys - num_new + 1))
                tokens = rng.integers(1, self.shape.vocab, num_new).tolist()
                requests.append(ToyRequest(row=int(row), num_cached=num_cached, tokens=tokens))
            return SampledStep(batch=self.batch(requests, axis=axis), raw_bs=num_requests, raw_num_tokens=raw)

        return make


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyRequest:
    """A request's part in one step."""

    row: int
    num_cached: int
    tokens: Sequence[int]


def toy_registry(axis: RunAxis, *, max_rows: int, device: torch.device | str = "cpu") -> CudaGraphBufferRegistry:
    """The toy's inputs. Decode has `max_rows` requests; prefill that many tokens, and up to 16 requests."""
    max_bs = max_rows if axis == "bs" else 16
    registry = CudaGraphBufferRegistry(max_bs=max_bs, max_num_tokens=max_rows, device=device)
    for name, dtype, index in (
        ("input_ids", torch.int64, None),
        ("positions", POSITIONS.dtype, POSITIONS),
        ("out_cache_loc", KV_LOCS.dtype, KV_LOCS),
    ):
        registry.register_slot(host_vector(name, "tokens", dtype, index=index))
    registry.register_slot(host_vector("req_pool_indices", "bs", ROWS.dtype, index=ROWS))
    # A padded row attends to one key, the sink's: with none its softmax would have no terms.
    registry.register_slot(host_vector("seq_lens", "bs", torch.int32, pad_value=1))
    if axis == "tokens":
        registry.register_slot(host_vector("extend_lens", "bs", torch.int32))
    registry.freeze()
    return registry
