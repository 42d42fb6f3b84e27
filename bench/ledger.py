"""What the ledger costs: `python -m bench.ledger`. Pure CPU, one JSON line per pool; run it on the host that serves.

`check_us` is paid after every step: the counts of every group are compared. `audit_us` recounts everything, once in
`audit_every_s` by default, which is 1% of the time. `settle_us` is a recount that writes the account anew, after a
violation or a change that was cut short. All are the thread's own time, so that a busy machine does not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from bench.kv import PAGE_SIZE, plan_of
from bench.kv_models import models
from bench.measure import emit
from playhead.kv.cache import HybridKVCache
from playhead.kv.ledger import REST_PER_AUDIT, KVWatch, Ledger

BATCH = 128
CONTEXT = 8192
GIB = 2**30


def busy_cache(name: str, num_bytes: int) -> HybridKVCache:
    """128 running requests of all lengths up to 8,192 tokens, behind prompts that have ended and are cached."""
    cache = HybridKVCache(plan_of(name, num_bytes=num_bytes, max_context_tokens=4 * CONTEXT, max_running=256))
    for number in range(2 * BATCH):
        tokens = [number + 1] * (CONTEXT * (1 + number % BATCH) // BATCH)
        seq = cache.admit(f"r{number}", tokens)
        cache.extend(seq, len(tokens) - seq.num_tokens)
        cache.allocator.mapping.take_unpublished()
        cache.retire(cache.launch())
        if number < BATCH:
            cache.finish(seq, tokens)
    assert len(cache.sequences) == BATCH
    return cache


def best_us(work: Callable[[], object], *, calls: int, rounds: int = 7) -> float:
    """Microseconds of one call in the best round."""
    times = []
    for _ in range(rounds):
        started = time.thread_time()
        for _ in range(calls):
            work()
        times.append((time.thread_time() - started) / calls)
    return 1e6 * min(times)


def settle(cache: HybridKVCache) -> None:
    cache.in_doubt = True
    assert cache.settle()


def main() -> None:
    for name in models():
        cache = busy_cache(name, 100 * GIB)
        watch, ledger = KVWatch(cache, every_steps=10**9), Ledger(cache)
        check_us = best_us(partial(watch.look, is_idle=False), calls=2000)
        audit_us = best_us(ledger.audit, calls=3)
        emit(
            "ledger",
            model=name,
            pages=sum(cache.plan.num_pages(index) for index in range(len(cache.allocator.groups))),
            page_size=PAGE_SIZE,
            batch=BATCH,
            check_us=check_us,
            audit_us=audit_us,
            audit_every_s=REST_PER_AUDIT * audit_us / 1e6,
            settle_us=best_us(partial(settle, cache), calls=1, rounds=3),
        )


if __name__ == "__main__":
    main()
