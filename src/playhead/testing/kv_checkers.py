"""Checks of KV memory that are silent on sound code. Each runs in well under two seconds, on the CPU."""

from __future__ import annotations

import numpy as np
import torch

from playhead.errors import ConfigError, LedgerError
from playhead.kv.cache import HybridKVCache
from playhead.kv.geometry import KVGeometry
from playhead.kv.hybrid import HybridAllocator
from playhead.kv.layout import lay_out
from playhead.kv.plan import KVLimits, KVPlan, plan_kv
from playhead.kv.sequence import SequenceKV, Stride
from playhead.kv.swa_pool import SWAKVPool
from playhead.kv.violations import ViolationLog
from playhead.testing.kv_pools import OwnershipError, ReferenceKVPool
from playhead.testing.kv_rules import KVRules, RuleBroken, run_random_rules, run_step, small_layer, small_plan
from playhead.testing.mutant import Checker
from playhead.testing.translation_checkers import TRANSLATION_CHECKERS

PAGE_SIZE = 4
NUM_WINDOW_LAYERS = 3


def new_pool(plan: KVPlan) -> tuple[SWAKVPool, HybridAllocator]:
    allocator = HybridAllocator(plan, ViolationLog(strict=True))
    return SWAKVPool(plan, allocator.mapping, device=torch.device("cpu")), allocator


def hybrid_plan(*, num_slabs: int = 60) -> KVPlan:
    layers = [small_layer(8)] * NUM_WINDOW_LAYERS + [small_layer(None)]
    return small_plan(layers, page_size=PAGE_SIZE, num_slabs=num_slabs)


def check_rules() -> list[str]:
    """K6 in short: any order of rules, against the model in sets."""
    for page_size, num_slabs, seed in ((1, 70, 1), (2, 45, 2), (4, 24, 3)):
        rules = KVRules(small_plan([small_layer(8), small_layer(None)], page_size=page_size, num_slabs=num_slabs))
        run_random_rules(rules, seed=seed, num_rules=2000)
    return []


def check_strides() -> list[str]:
    """Sequences that grow together have what each would have if it grew alone: tokens, pages and windows.

    Every fourth step a sequence leaves, and every seventh step is taken back and planned again.
    """
    together, alone = (HybridKVCache(hybrid_plan(num_slabs=120), strict=True) for _ in range(2))
    lengths = {"a": 9, "b": 3, "c": 14, "d": 6}
    seqs = {cache: [prefilled(cache, name, size) for name, size in lengths.items()] for cache in (together, alone)}
    stride, num_going_on, found = Stride(), len(lengths), list[str]()
    together.join(stride, seqs[together])
    for step in range(1, 16):
        if step % 4 == 0:
            num_going_on -= 1
            seqs[together][num_going_on].join(Stride())
        for cache in (together, alone):
            for seq in seqs[cache][:num_going_on]:
                cache.reserve([seq], np.array([seq.num_tokens + 1]))
        for _ in range(2 if step % 7 == 0 else 1):
            together.retract()
            together.advance(stride)
        for seq in seqs[alone][:num_going_on]:
            alone.extend(seq, 1)
        for cache in (together, alone):
            run_step(cache)
        facts = [[memory_of(seq) for seq in seqs[cache]] for cache in (together, alone)]
        if facts[0] != facts[1]:
            found.append(f"step {step}: together {facts[0]}, alone {facts[1]}")
    return found


def prefilled(cache: HybridKVCache, name: str, num_tokens: int) -> SequenceKV:
    """A sequence whose prompt a step has computed."""
    seq = cache.admit(name, [*range(num_tokens)])
    cache.extend(seq, num_tokens)
    run_step(cache)
    return seq


def memory_of(seq: SequenceKV) -> tuple[int, int, list[int], list[int]]:
    return seq.num_tokens, seq.num_launched_tokens, list(seq.pages), list(seq.frontiers)


def check_device_mapping() -> list[str]:
    """Beyond 32,767 pages, the device's mapping is still the host's."""
    pool, allocator = new_pool(small_plan([small_layer(8), small_layer(None)], page_size=1, num_slabs=140_000))
    allocator.allocate(69_000)
    pool.publish(allocator.mapping)
    on_device = pool.full_to_swa_index_mapping[:-1].numpy()
    wrong = (on_device != allocator.mapping.table(0)).nonzero()[0]
    return [f"{len(wrong)} entries differ, the first at {wrong[0]}"] if len(wrong) else []


def check_int32_locations() -> list[str]:
    """A plan with a location beyond int32 is refused; the largest without one is not."""
    geometry = KVGeometry.of([small_layer(None)], PAGE_SIZE)
    layout = lay_out(geometry)
    limits = KVLimits(max_context_tokens=64, max_running=1, chunk_tokens=8)
    num_slabs = 2**31 // (PAGE_SIZE * layout.groups[0].pages_per_slab) - 1
    plan_kv(num_bytes=num_slabs * layout.slab_bytes, geometry=geometry, limits=limits)
    try:
        plan_kv(num_bytes=(num_slabs + 1) * layout.slab_bytes, geometry=geometry, limits=limits)
    except ConfigError:
        return []
    return ["a plan has more locations than int32"]


def check_reference_pool() -> list[str]:
    """K5 and K8 on tensors: a decoding request reads what it wrote, also beside others that come and go."""
    cache = HybridKVCache(hybrid_plan(num_slabs=30), strict=True)
    reference = ReferenceKVPool(cache)
    running = cache.admit("a", [1])
    for position in range(40):
        first = running.num_tokens
        cache.extend(running, 1)
        other = cache.admit("b", [2] * 12)
        cache.extend(other, 12 - other.num_hit_tokens)
        rows = torch.full((1, 1, 8), float(position))
        reference.write(running, first, dict.fromkeys(range(NUM_WINDOW_LAYERS + 1), (rows, rows)))
        cache.retire(cache.launch())
        cache.finish(other, [2] * 12)
        seen = reference.read(running, 0)[0][:, 0, 0].tolist()
        wanted = [float(i) for i in range(max(0, position - 6), position + 1)]
        if seen != wanted:
            return [f"after token {position} the window shows {seen}, not {wanted}"]
    return []


KV_CHECKERS: tuple[Checker, ...] = (
    *TRANSLATION_CHECKERS,
    Checker(name="strides", run=check_strides),
    Checker(name="device mapping", run=check_device_mapping),
    Checker(name="int32 locations", run=check_int32_locations),
    Checker(name="reference pool (K5, K8)", run=check_reference_pool, raises=(OwnershipError, LedgerError)),
    Checker(name="rules (K6)", run=check_rules, raises=(RuleBroken, LedgerError)),
)
