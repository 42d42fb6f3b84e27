"""Random attention steps over paged memory in which everything a query may not see is NaN.

`dense_attention` computes the same step from unpaged keys and values, one query at a time, by the textbook formula: it
shares no code with what it checks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from playhead.attention.base import PAST_EVERY_TOKEN, AttentionPlan, LayerAttention


@dataclass(frozen=True, kw_only=True)
class SceneSpec:
    """A step. `query_lens` of None means decode; `num_null` padded requests follow the real ones."""

    seq_lens: tuple[int, ...]
    query_lens: tuple[int, ...] | None = None
    num_null: int = 0
    num_kv_heads: int = 1
    group_size: int = 1
    k_head_dim: int = 8
    v_head_dim: int = 8
    page_size: int = 4
    window: int | None = None
    softcap: float | None = None
    has_sinks: bool = False
    has_own_pool: bool = False
    """Keys and values lie in a smaller pool, which holds the pages that queries see and no others."""

    @property
    def num_heads(self) -> int:
        return self.num_kv_heads * self.group_size

    @property
    def queries(self) -> tuple[int, ...]:
        return self.query_lens or (1,) * len(self.seq_lens)


@dataclass(frozen=True, kw_only=True, eq=False)
class Scene:
    """The step as tensors: `keys[b]` and `values[b]` are request b's, unpaged."""

    spec: SceneSpec
    layer: LayerAttention
    plan: AttentionPlan
    q: torch.Tensor
    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]

    @property
    def num_live(self) -> int:
        """Rows of q that belong to real requests."""
        return sum(self.spec.queries)

    def new_out(self) -> torch.Tensor:
        """Output full of NaN, so that what nobody writes shows."""
        shape = (self.q.shape[0], self.spec.num_heads, self.spec.v_head_dim)
        return torch.full(shape, float("nan"), dtype=self.q.dtype, device=self.q.device)


def make_scene(spec: SceneSpec, seed: int, *, dtype=torch.float32, device="cpu") -> Scene:
    rng = torch.Generator().manual_seed(seed)
    table, num_pages = make_table(spec, rng)
    k_cache, v_cache = make_caches(spec, num_pages, dtype, device)
    keys, values = [], []
    for row, (seq_len, num_queries) in enumerate(zip(spec.seq_lens, spec.queries, strict=True), start=1):
        k = torch.randn(seq_len, spec.num_kv_heads, spec.k_head_dim, generator=rng).to(dtype)
        v = torch.randn(seq_len, spec.num_kv_heads, spec.v_head_dim, generator=rng).to(dtype)
        first = first_seen_key(spec, seq_len, num_queries)
        position = torch.arange(first, seq_len)
        page, slot = table[row, position // spec.page_size], position % spec.page_size
        k_cache[page, slot] = k[first:].to(device)
        v_cache[page, slot] = v[first:].to(device)
        keys.append(k)
        values.append(v)
    layer = LayerAttention(
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        k_head_dim=spec.k_head_dim,
        v_head_dim=spec.v_head_dim,
        scale=spec.k_head_dim**-0.5,
        k_cache_NSKD=k_cache,
        v_cache_NSKE=v_cache,
        window=spec.window,
        softcap=spec.softcap,
        sinks_H=torch.randn(spec.num_heads, generator=rng).to(device) if spec.has_sinks else None,
    )
    plan = make_plan(spec, table, device)
    num_rows = sum(spec.queries) + spec.num_null
    q = torch.randn(num_rows, spec.num_heads, spec.k_head_dim, generator=rng).to(device, dtype)
    return Scene(spec=spec, layer=layer, plan=plan, q=q, keys=tuple(keys), values=tuple(values))


def first_seen_key(spec: SceneSpec, seq_len: int, num_queries: int) -> int:
    return 0 if spec.window is None else max(0, seq_len - num_queries - spec.window + 1)


def make_table(spec: SceneSpec, rng: torch.Generator) -> tuple[torch.Tensor, int]:
    """A page table with shuffled pages, and the number of the pool's pages. What has no page shows the sink's."""
    end_pages = [math.ceil(length / spec.page_size) for length in spec.seq_lens]
    first_pages = [
        first_seen_key(spec, length, num_queries) // spec.page_size if spec.has_own_pool else 0
        for length, num_queries in zip(spec.seq_lens, spec.queries, strict=True)
    ]
    num_pages = 1 + sum(end_pages) - sum(first_pages)
    ids = (torch.randperm(num_pages - 1, generator=rng) + 1).to(torch.int32)
    table = torch.zeros(1 + len(spec.seq_lens), max(end_pages) + 1, dtype=torch.int32)
    for row, (first, end) in enumerate(zip(first_pages, end_pages, strict=True), start=1):
        table[row, first:end], ids = ids[: end - first], ids[end - first :]
    return table, num_pages


def make_caches(spec: SceneSpec, num_pages: int, dtype, device) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of one layer, strided through memory they share with others. All NaN."""
    k_numbers = spec.page_size * spec.num_kv_heads * spec.k_head_dim
    v_numbers = spec.page_size * spec.num_kv_heads * spec.v_head_dim
    arena = torch.full((num_pages, k_numbers + v_numbers + 16), float("nan"), dtype=dtype, device=device)
    k_cache = arena[:, :k_numbers].unflatten(1, (spec.page_size, spec.num_kv_heads, spec.k_head_dim))
    v_cache = arena[:, k_numbers : k_numbers + v_numbers].unflatten(
        1, (spec.page_size, spec.num_kv_heads, spec.v_head_dim)
    )
    return k_cache, v_cache


def make_plan(spec: SceneSpec, table: torch.Tensor, device) -> AttentionPlan:
    """Row b + 1 of the table for request b, then null requests: row 0, one key, no queries of an extend step."""

    def per_request(values, pad):
        return torch.tensor([*values, *[pad] * spec.num_null], dtype=torch.int32, device=device)

    plan = AttentionPlan(
        page_table_RP=table.to(device),
        rows_B=per_request(range(1, 1 + len(spec.seq_lens)), 0),
        seq_lens_B=per_request(spec.seq_lens, 1),
    )
    if spec.query_lens is None:
        return plan
    starts = [sum(spec.query_lens[:b]) for b in range(len(spec.query_lens))]
    return replace(
        plan,
        query_starts_B=per_request(starts, PAST_EVERY_TOKEN),
        query_lens_B=per_request(spec.query_lens, 0),
        notes={},
    )


def dense_attention(scene: Scene) -> torch.Tensor:
    """The live rows of the output, in float64, on the CPU."""
    spec, outputs = scene.spec, []
    q = scene.q.cpu().double()
    sinks = None if scene.layer.sinks_H is None else scene.layer.sinks_H.cpu().double()
    row = 0
    for keys, values, num_queries in zip(scene.keys, scene.values, spec.queries, strict=True):
        for position in range(len(keys) - num_queries, len(keys)):
            first = 0 if spec.window is None else max(0, position - spec.window + 1)
            seen = slice(first, position + 1)
            for head in range(spec.num_heads):
                kv_head = head // spec.group_size
                logits = keys[seen, kv_head].double() @ q[row, head] * scene.layer.scale
                if spec.softcap is not None:
                    logits = spec.softcap * torch.tanh(logits / spec.softcap)
                if sinks is not None:
                    logits = torch.cat((logits, sinks[head : head + 1]))
                weights = torch.softmax(logits, 0)[: position + 1 - first]
                outputs.append(weights @ values[seen, kv_head].double())
            row += 1
    return torch.stack(outputs).view(row, spec.num_heads, spec.v_head_dim)


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """||found - wanted|| / ||wanted||; NaN if anything is."""
    wanted = wanted.double().cpu()
    return float((found.double().cpu() - wanted).norm() / wanted.norm())
