"""Checks of KV memory that are silent on sound code. Each runs in well under two seconds, on the CPU."""

from __future__ import annotations

import torch

from playhead.graph.backends.base import record
from playhead.graph.backends.tape import TapeBackend
from playhead.kv.cache import HybridKVCache
from playhead.kv.errors import LedgerError, StaleTranslation
from playhead.kv.hybrid import HybridAllocator
from playhead.kv.plan import KVPlan
from playhead.kv.swa_pool import SWAKVPool
from playhead.kv.violations import ViolationLog
from playhead.testing.kv_pools import OwnershipError, ReferenceKVPool, one_request
from playhead.testing.kv_rules import KVRules, RuleBroken, run_random_rules, small_layer, small_plan
from playhead.testing.mutant import Checker
from playhead.types import FullLoc

PAGE_SIZE = 4
NUM_WINDOW_LAYERS = 3


def new_pool(plan: KVPlan) -> tuple[SWAKVPool, HybridAllocator]:
    allocator = HybridAllocator(plan, ViolationLog(strict=True))
    return SWAKVPool(plan, allocator.mapping, device=torch.device("cpu")), allocator


def hybrid_plan(*, num_slabs: int = 60) -> KVPlan:
    layers = [small_layer(8)] * NUM_WINDOW_LAYERS + [small_layer(None)]
    return small_plan(layers, page_size=PAGE_SIZE, num_slabs=num_slabs)


def locs_of(pages: list[int]) -> torch.Tensor:
    return torch.tensor([page * PAGE_SIZE + i for page in pages for i in range(PAGE_SIZE)], dtype=torch.int32)


def host_answer(allocator: HybridAllocator, locs: torch.Tensor) -> list[int]:
    return [allocator.mapping.window_loc(0, FullLoc(loc)) for loc in locs.tolist()]


def check_rules() -> list[str]:
    """K6 in short: any order of rules, against the model in sets."""
    for page_size, num_slabs, seed in ((1, 70, 1), (2, 45, 2), (4, 24, 3)):
        rules = KVRules(small_plan([small_layer(8), small_layer(None)], page_size=page_size, num_slabs=num_slabs))
        run_random_rules(rules, seed=seed, num_rules=2000)
    return []


def check_replayed_translation() -> list[str]:
    """A slot refilled in place and a changed mapping show in the next replay; views are different inputs."""
    pool, allocator = new_pool(hybrid_plan())
    first, second = allocator.allocate(2), allocator.allocate(2)
    pool.publish(allocator.mapping)
    slot = locs_of(first)
    recording, translated = record(TapeBackend(), lambda: pool.translate_loc_from_full_to_swa(slot))
    slot.copy_(locs_of(second))
    allocator.drop_windows(0, first + second)
    allocator.attach_windows(0, second)
    pool.publish(allocator.mapping)
    recording.replay()
    found = []
    if translated.tolist() != host_answer(allocator, slot):
        found.append(f"replay gave {translated.tolist()}, the mapping says {host_answer(allocator, slot)}")
    halves = [pool.translate_loc_from_full_to_swa(half).tolist() for half in (slot[:PAGE_SIZE], slot[PAGE_SIZE:])]
    if halves[0] + halves[1] != host_answer(allocator, slot):
        found.append(f"views of one storage gave {halves}")
    return found


def check_one_gather_per_forward() -> list[str]:
    """However many window layers, the tape holds one translation."""
    pool, allocator = new_pool(hybrid_plan())
    tokens = one_request(allocator.plan, allocator.allocate(1), range(PAGE_SIZE))
    pool.publish(allocator.mapping)
    kv = torch.ones(PAGE_SIZE, 1, 8)

    def forward() -> None:
        locs = pool.begin_forward(tokens)
        for layer in range(NUM_WINDOW_LAYERS + 1):
            pool.set_kv_buffer(layer, locs, kv, kv)

    recording, _ = record(TapeBackend(), forward)
    num_gathers = recording.log.count("aten::index") + recording.log.count("playhead::translate")
    return [] if num_gathers == 1 else [f"{num_gathers} gathers in one forward"]


def check_publication() -> list[str]:
    """A device mapping that is behind stops a forward and a launch."""
    pool, allocator = new_pool(hybrid_plan())
    tokens = one_request(allocator.plan, allocator.allocate(1), range(PAGE_SIZE))
    found = []
    try:
        pool.begin_forward(tokens)
        found.append("a forward began on an unpublished mapping")
    except StaleTranslation:
        pass
    try:
        allocator.launch()
        found.append("a step was launched on an unpublished mapping")
    except StaleTranslation:
        pass
    return found


def check_device_mapping() -> list[str]:
    """Beyond 32,767 pages, the device's mapping is still the host's."""
    pool, allocator = new_pool(small_plan([small_layer(8), small_layer(None)], page_size=1, num_slabs=140_000))
    allocator.allocate(69_000)
    pool.publish(allocator.mapping)
    on_device = pool.full_to_swa_index_mapping[:-1].numpy()
    wrong = (on_device != allocator.mapping.table(0)).nonzero()[0]
    return [f"{len(wrong)} entries differ, the first at {wrong[0]}"] if len(wrong) else []


def check_sink_writes() -> list[str]:
    """Rows without a place write to the sink and nowhere else."""
    plan = hybrid_plan()
    pool, _ = new_pool(plan)
    kv = torch.ones(2, 1, 8)
    tokens = one_request(plan, [0], [0, 0])
    tokens.full_locs_T.copy_(torch.tensor([0, -1]))
    forward = pool.begin_forward(tokens)
    found = []
    for layer in range(NUM_WINDOW_LAYERS + 1):
        pool.set_kv_buffer(layer, forward, kv, kv)
        # The sinks of all groups lie over each other in the first slab, which nobody else gets.
        num_sink_pages = plan.layout.groups[pool.layers_mapping[layer][1]].pages_per_slab
        for tensor in pool.get_kv_buffer(layer):
            if bool(tensor[num_sink_pages:].any()):
                found.append(f"layer {layer}: a row without a place wrote beside the sink")
    return found


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
    Checker(name="translation in a replay", run=check_replayed_translation),
    Checker(name="one gather per forward", run=check_one_gather_per_forward),
    Checker(name="publication", run=check_publication),
    Checker(name="device mapping", run=check_device_mapping),
    Checker(name="sink writes", run=check_sink_writes),
    Checker(name="reference pool (K5, K8)", run=check_reference_pool, raises=(OwnershipError, LedgerError)),
    Checker(name="rules (K6)", run=check_rules, raises=(RuleBroken, LedgerError)),
)
