"""KV memory in numbers: `python -m bench.kv [--part trace] [--quick] [--plot docs/kv_trace.png]`.

Capacity against uniform paging and the hybrid bound, the steady state with the prefix cache on, operations per
second, and a trace of requests through the scheduler's calls. Pure CPU; one JSON line per figure.
"""

from __future__ import annotations

import argparse
import statistics
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench.kv_models import models
from bench.kv_steady import SteadyRun
from bench.kv_trace import TraceResult, TraceRun
from bench.measure import emit
from playhead.kv.allocator import PageAllocator, SlabArena
from playhead.kv.cache import HybridKVCache
from playhead.kv.geometry import KVGeometry
from playhead.kv.hybrid import HybridAllocator
from playhead.kv.ledger import Ledger
from playhead.kv.plan import KVLimits, KVPlan, plan_kv
from playhead.kv.prefix import PrefixCache, token_key
from playhead.kv.violations import ViolationLog

GIB = 2**30
KV_BYTES = 64 * GIB
TRACE_BYTES = 16 * GIB
PAGE_SIZE = 16
CHUNK_TOKENS = 1024
CONTEXTS = (2048, 8192, 32768, 131072)
STEADY_CONTEXTS = (8192, 32768)
ROUNDS = 3

Prompt = tuple[list[int], "array[int]"]
"""Tokens, and the pages that they are in."""


def plan_of(name: str, *, num_bytes: int, max_context_tokens: int, max_running: int) -> KVPlan:
    """Two steps in flight: a step is launched before the last one is read."""
    limits = KVLimits(
        max_context_tokens=max_context_tokens,
        max_running=max_running,
        chunk_tokens=CHUNK_TOKENS,
        num_steps_in_flight=2,
    )
    return plan_kv(num_bytes=num_bytes, geometry=KVGeometry.of(models()[name], PAGE_SIZE), limits=limits)


def bench_capacity(num_bytes: int) -> None:
    for name in models():
        plan = plan_of(name, num_bytes=num_bytes, max_context_tokens=min(CONTEXTS), max_running=256)
        for context in CONTEXTS:
            capacity = plan.capacity(context)
            emit(
                "kv_capacity",
                model=name,
                context=context,
                requests=capacity.num_requests,
                tokens=capacity.num_tokens,
                uniform_tokens=capacity.uniform_tokens,
                times_uniform=capacity.times_uniform,
                bound_times_uniform=capacity.bound_tokens / capacity.uniform_tokens,
                fraction_of_bound=capacity.fraction_of_bound,
            )


def bench_steady_state(names: list[str], contexts: tuple[int, ...], num_bytes: int) -> None:
    for name in names:
        for context in contexts:
            plan = plan_of(name, num_bytes=num_bytes, max_context_tokens=context, max_running=1600)
            state = SteadyRun(plan, context_tokens=context).measure(num_decode_steps=32)
            emit(
                "kv_steady_state",
                model=name,
                context=context,
                requests=state.num_requests,
                fraction_of_bound=state.fraction_of_bound,
                replaced=state.num_replaced,
                waits_for_pages=state.num_out_of_pages,
            )


def per_second(work: Callable[[], int]) -> float:
    """Operations per second of a callable that says how many it did; the best of `ROUNDS` calls."""
    rates = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        num_done = work()
        rates.append(num_done / (time.perf_counter() - started))
    return max(rates)


def bench_operations(num_pages: int) -> None:
    pages = PageAllocator(
        name="full", arena=SlabArena(2 + num_pages // 5), pages_per_slab=5, violations=ViolationLog(strict=True)
    )

    def take_and_give_back(count: int) -> int:
        for _ in range(num_pages // count):
            pages.give_back(pages.take(count))
        return num_pages

    emit("kv_pages_per_s", batch=1, value=per_second(lambda: take_and_give_back(1)))
    emit("kv_pages_per_s", batch=512, value=per_second(lambda: take_and_give_back(512)))

    plan = plan_of("Gemma-3-4B", num_bytes=TRACE_BYTES, max_context_tokens=32768, max_running=64)
    cache = HybridKVCache(plan, prefix_caching=False)
    sequences = [cache.admit(f"r{index}", [1]) for index in range(64)]

    def decode() -> int:
        for _ in range(200):
            for seq in sequences:
                cache.extend(seq, 1)
            cache.allocator.mapping.take_unpublished()
            cache.retire(cache.launch())
        return 200 * len(sequences)

    emit("kv_decoded_tokens_per_s", batch=64, value=per_second(decode))
    ledger = Ledger(cache)
    emit("kv_ledger_checks_per_s", value=per_second(lambda: sum(1 for _ in range(1000) if not ledger.check())))
    bench_prefix(plan)


def bench_prefix(plan: KVPlan) -> None:
    allocator = HybridAllocator(plan, ViolationLog(strict=True))
    prefix = PrefixCache(allocator)
    tokens = [index * 7919 % 262144 for index in range(32768)]
    pages = array("i", allocator.allocate(len(tokens) // PAGE_SIZE))
    prefix.insert("", token_key(tokens), pages)

    def match() -> int:
        prefix.match("", token_key(tokens))
        return 1

    emit("kv_match_32k_us", value=1e6 / per_second(match))
    prompts = unseen_prompts(allocator)
    emit("kv_inserts_per_s", tokens=64, value=per_second(lambda: insert(prefix, next(prompts))))


def unseen_prompts(allocator: HybridAllocator) -> Iterator[list[Prompt]]:
    """Prompts of 64 tokens for each round of `per_second`: of a prompt it knows, the tree only finds the pages."""
    rounds = range(1000, 1000 + 200 * ROUNDS, 200)
    pages = [[array("i", allocator.allocate(64 // PAGE_SIZE)) for _ in range(200)] for _ in rounds]
    for first, own in zip(rounds, pages, strict=True):
        yield [([token] * 64, own[token - first]) for token in range(first, first + 200)]


def insert(prefix: PrefixCache, prompts: Sequence[Prompt]) -> int:
    for tokens, pages in prompts:
        prefix.insert("", token_key(tokens), pages)
    return len(prompts)


def bench_trace(num_requests: int, plot: Path | None) -> None:
    plan = plan_of("Gemma-3-4B", num_bytes=TRACE_BYTES, max_context_tokens=8192, max_running=256)
    run = TraceRun(plan, num_requests=num_requests)
    started = time.perf_counter()
    result = run.run()
    step_us = sorted(result.step_us)
    emit(
        "kv_trace",
        model="Gemma-3-4B",
        gib=TRACE_BYTES / GIB,
        finished=result.num_finished,
        aborted=result.num_aborted,
        preempted=run.cache.num_preempted,
        steps=len(step_us),
        decoded_tokens=result.num_decoded_tokens,
        seconds=time.perf_counter() - started,
    )
    emit(
        "kv_trace_scheduling_us",
        mean=statistics.mean(step_us),
        p50=step_us[len(step_us) // 2],
        p99=step_us[len(step_us) * 99 // 100],
    )
    if result.held_share:
        emit(
            "kv_trace_utilisation",
            held=statistics.mean(result.held_share),
            cached=statistics.mean(result.cached_share),
            ideal_of_running=statistics.mean(result.ideal_share),
        )
    outcomes = {outcome.value: count for outcome, count in run.cache.prefix.stats.num_by_outcome.items()}
    emit("kv_trace_prefix", hit_rate=run.cache.prefix.stats.hit_rate, **outcomes)
    if plot is not None:
        draw(result, plot)


def draw(result: TraceResult, path: Path) -> None:
    """Where the bytes are, and how often prefixes hit, over the trace."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise SystemExit("bench.kv --plot: matplotlib is not installed; pip install 'playhead[bench]'") from error
    figure, (memory, hits) = pyplot.subplots(2, 1, figsize=(9, 5), sharex=True, height_ratios=[2, 1])
    steps = [200 * (index + 1) for index in range(len(result.held_share))]
    memory.stackplot(steps, result.held_share, result.cached_share, labels=["held by requests", "cached prefixes"])
    memory.plot(
        steps, result.ideal_share, color="black", linewidth=0.7, label="running requests without sharing, ideal"
    )
    memory.set_ylabel("share of the arena")
    memory.legend(loc="lower right", fontsize="small")
    hits.plot(steps, result.hit_rate)
    hits.set_ylabel("prefix hit rate")
    hits.set_xlabel("step")
    hits.set_ylim(0, 1)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes; figures mean little")
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--plot", type=Path, default=None)
    parser.add_argument("--part", choices=["capacity", "steady", "operations", "trace"], default=None)
    options = parser.parse_args()
    quick = options.quick
    parts: dict[str, Callable[[], None]] = {
        "capacity": lambda: bench_capacity(KV_BYTES),
        "steady": lambda: bench_steady_state(
            ["Gemma-3-27B"] if quick else list(models()),
            STEADY_CONTEXTS[: 1 if quick else None],
            KV_BYTES // 4 if quick else KV_BYTES,
        ),
        "operations": lambda: bench_operations(10_000 if quick else 1_000_000),
        "trace": lambda: bench_trace(200 if quick else options.requests, options.plot),
    }
    for name, run_part in parts.items():
        if options.part in (None, name):
            run_part()


if __name__ == "__main__":
    main()
