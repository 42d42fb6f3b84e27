"""Time on the host and on the device, and one JSON line per figure."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

COLD_BYTES = 256 << 20  # several times the L2 of an H200


def cold_copies(num_bytes: int) -> int:
    """How many copies of what a call reads are together too large for a GPU's cache: 4 of 64 MiB, 1,024 of 256 KiB.

    A graph that goes round so many of them finds none in the cache when it comes back.
    """
    return max(2, -(-COLD_BYTES // num_bytes))


def emit(metric: str, **values: Any) -> None:
    rounded = {k: round(v, 3) if isinstance(v, float) else v for k, v in values.items()}
    print(json.dumps({"metric": metric, **rounded}), flush=True)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def host_us(work: Callable[[], object], device: torch.device, *, calls: int = 50, rounds: int = 15) -> float:
    """Microseconds the host spends in one call: median over rounds, the device drained between rounds.

    A round is short enough for the launch queue not to fill up: otherwise this would measure the device.
    """
    for _ in range(4 * calls):
        work()
    times = []
    for _ in range(rounds):
        synchronize(device)
        start = time.perf_counter()
        for _ in range(calls):
            work()
        times.append((time.perf_counter() - start) / calls * 1e6)
    synchronize(device)
    return statistics.median(times)


def device_us(work: Callable[[], object], device: torch.device, *, calls: int = 20, rounds: int = 7) -> float:
    """Microseconds of device time per call, by events; on the CPU, wall time."""
    if device.type != "cuda":
        return host_us(work, device, calls=calls, rounds=rounds)
    for _ in range(calls):
        work()
    times: list[float] = []
    for _ in range(rounds):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        synchronize(device)
        start.record()
        for _ in range(calls):
            work()
        stop.record()
        synchronize(device)
        times.append(start.elapsed_time(stop) / calls * 1e3)
    return statistics.median(times)
