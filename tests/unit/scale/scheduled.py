"""The engine's own scheduler and KV cache on virtual time: what a simulated replica is compared with."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from playhead.graph.shapes import bucket_sizes
from playhead.kv.cache import HybridKVCache
from playhead.kv.geometry import KVDtype, KVGeometry, LayerKV
from playhead.kv.plan import KVLimits, KVPlan, plan_kv
from playhead.outputs import FinishReason
from playhead.sampling_params import SamplingParams
from playhead.scale.cost import AttentionShape, CostModel, Gpu, ModelShape, StepCosts, StepWork
from playhead.scale.simulation.request import ReplicaSpec, SimRequest
from playhead.schedule.request import Request
from playhead.schedule.rows import DeviceRows
from playhead.schedule.scheduler import ScheduleLimits, Scheduler

PAGE = 4
COSTS = StepCosts(
    weights=1.1, kv=1.3, layer_us=30, row_flops=0.7, row_us=2, prompt_flops=1.2, prompt_layer_us=50, prompt_token_us=1
)
GPU = Gpu(name="toy", memory_bytes=1 << 30, bytes_per_s=1e9, flops_per_s=1e11)


def toy_plan(*, window: int | None = 16, num_slabs: int = 4000, max_running: int = 8, chunk_tokens: int = 32) -> KVPlan:
    """Two layers, one of them with a window if there is one."""
    layers = [
        LayerKV(window=one, num_kv_heads=1, k_head_dim=8, v_head_dim=8, dtype=KVDtype.FLOAT32) for one in (None, window)
    ]
    geometry = KVGeometry.of(layers, PAGE)
    limits = KVLimits(max_context_tokens=256, max_running=max_running, chunk_tokens=chunk_tokens)
    return plan_kv(num_bytes=num_slabs * PAGE * 64, geometry=geometry, limits=limits)


def toy_cost(plan: KVPlan) -> CostModel:
    groups = tuple(
        AttentionShape(
            window=group.window,
            num_kv_heads=1,
            kv_bytes_per_token=group.bytes_per_token,
            flops_per_key=32 * len(group.layers),
        )
        for group in plan.geometry.groups
        if group.layers
    )
    shape = ModelShape(
        weight_bytes=400_000, num_layers=2, layer_flops=200_000, head_flops=50_000, hidden_bytes=64, attention=groups
    )
    return CostModel(shape=shape, gpu=GPU, costs=COSTS)


@dataclass(kw_only=True)  # mutable: filled while it runs
class Told:
    """What became of each request, by index, and the tokens of every step."""

    first_s: dict[int, float] = field(default_factory=dict)
    end_s: dict[int, float] = field(default_factory=dict)
    num_cached: dict[int, int] = field(default_factory=dict)
    steps: list[tuple[int, int]] = field(default_factory=list)
    """(rows that decode, tokens of prompts)"""
    num_preemptions: int = 0


def prompt_of(request: SimRequest) -> tuple[int, ...]:
    """Token ids: those of its shared parts, then its own."""
    tokens: list[int] = []
    for part, end in zip(request.path, request.ends, strict=True):
        tokens += [1 + hash((part, i)) % 30_000 for i in range(len(tokens), end)]
    own = request.prompt_tokens - len(tokens)
    return (*tokens, *(40_000 + request.index * 300 + i for i in range(own)))


def scheduled(requests: Sequence[SimRequest], plan: KVPlan) -> Told:
    """Run these requests through the engine's scheduler; a step takes what the cost model says, no step overlaps."""
    cost, told, now_s = toy_cost(plan), Told(), 0.0
    kv = HybridKVCache(plan, strict=True)
    limits = ScheduleLimits(chunk_tokens=plan.limits.chunk_tokens, max_waiting=len(requests))
    scheduler = Scheduler(kv, DeviceRows(), limits)
    coming = deque(sorted(requests, key=lambda one: one.arrival_s))
    while coming or scheduler.has_work:
        if not scheduler.has_work:
            now_s = max(now_s, coming[0].arrival_s)
        while coming and coming[0].arrival_s <= now_s:
            scheduler.add(asked(coming.popleft()))
        planned = list(scheduler.plan())
        kv.allocator.mapping.take_unpublished()
        kv.retire(kv.launch())
        scheduler.close_plan()
        decoding = [one for one in planned if one.num_generated and len(one.tokens) == 1]
        prompts = [one for one in planned if one not in decoding]
        now_s += padded_step_s(
            cost, plan, [one.end for one in decoding], [(one.end, len(one.tokens), one.samples) for one in prompts]
        )
        told.steps.append((len(decoding), sum(len(one.tokens) for one in prompts)))
        for chunk in planned:
            if chunk.samples:
                index = int(chunk.request.id)
                scheduler.commit(chunk, 7 + index)
                told.first_s.setdefault(index, now_s)
                told.num_cached.setdefault(index, chunk.request.num_cached_tokens)
                if len(chunk.request.output) >= chunk.request.max_new_tokens:
                    scheduler.finish(chunk.request, FinishReason.LENGTH)
                    told.end_s[index] = now_s
    told.num_preemptions = scheduler.num_preemptions
    return told


def asked(request: SimRequest) -> Request:
    return Request(
        id=str(request.index),
        prompt=prompt_of(request),
        params=SamplingParams(),
        max_new_tokens=request.output_tokens,
        arrival=request.index,
    )


def padded_step_s(cost: CostModel, plan: KVPlan, contexts: list[int], chunks: list[tuple[int, int, bool]]) -> float:
    """Seconds of a step by the cost model alone, in the captured sizes that the engine pads to."""
    shape, num_tokens = cost.shape, sum(count for _, count, _ in chunks)
    flops = sum(
        shape.prompt_flops(end - count, end) + (shape.head_flops if samples else 0) for end, count, samples in chunks
    )
    if num_tokens:
        sizes = bucket_sizes(plan.limits.chunk_tokens + plan.limits.max_running)
        total = num_tokens + len(contexts)
        padding = next(size for size in sizes if size >= total) - total
        num_tokens, flops = num_tokens + padding, flops + padding * shape.layer_flops
    rows = next((size for size in bucket_sizes(plan.limits.max_running) if size >= len(contexts)), 0) if contexts else 0
    kv_bytes = sum(map(shape.live_bytes, contexts))
    return cost.step_s(StepWork(num_rows=rows, kv_bytes=kv_bytes, num_prompt_tokens=num_tokens, prompt_flops=flops))


def spec_of(plan: KVPlan, *, jumps: bool = True) -> ReplicaSpec:
    """The simulated replica of the same memory plan."""
    return replace(ReplicaSpec.of_plan(toy_cost(plan), plan), jumps=jumps)
