"""Where the time of a decode step goes: microseconds of each kernel, seen by the profiler inside the graph."""

from __future__ import annotations

import collections
import statistics
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from bench import workload
from bench.measured_llm import GREEDY
from playhead.engine.engine import Engine
from playhead.engine.front import RequestOptions

FIRST_STEPS, STEPS = 8, 24
TOP = 24  # kernels that get a row of their own


def of_decode_step(engine: Engine, batch: int, prompt_tokens: int) -> dict[str, Any]:
    """Microseconds of one step by kernel, the dearest first.

    `step_us` is the device's own time of a step without a profiler. Kernels that overlap (dependent launches)
    count whole, so the gaps between kernels may be below zero.
    """
    params = GREEDY.clone()
    params.max_tokens = 1024
    for i, prompt in enumerate(workload.prompts(f"profile{batch}", [prompt_tokens] * batch)):
        engine.add_request(f"profile{i}", prompt, params, RequestOptions(streams=False))
    num_steady = 0
    while num_steady < FIRST_STEPS:
        engine.step()
        num_steady = sum(one.raw == one.num_requests == batch for one in engine.timeline.newest(FIRST_STEPS))
    step_us = statistics.median(one.device_us for one in engine.timeline.newest(FIRST_STEPS))
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(STEPS):
            engine.step()
        torch.cuda.synchronize()
    kernels = [
        (event.name, event.time_range.elapsed_us()) for event in profiler.events() if event.device_type.name == "CUDA"
    ]
    for i in range(batch):
        engine.abort(f"profile{i}")
    while engine.has_work:
        engine.step()
    return summed(kernels, STEPS, step_us)


def summed(kernels: list[tuple[str, float]], num_steps: int, step_us: float) -> dict[str, Any]:
    """What one step takes of these kernels, each given as (name, microseconds).

    A kernel of 3 us and another of 2 us in a step of 6 us leave 1 us between kernels.
    """
    total: dict[str, float] = collections.defaultdict(float)
    count: collections.Counter[str] = collections.Counter()
    for name, us in kernels:
        total[name] += us
        count[name] += 1
    busy_us = sum(total.values()) / num_steps
    rows = [
        {"kernel": name, "us": round(us / num_steps, 2), "count": round(count[name] / num_steps, 2)}
        for name, us in sorted(total.items(), key=lambda item: -item[1])[:TOP]
    ]
    return {
        "step_us": round(step_us, 1),
        "kernels_us": round(busy_us, 1),
        "gaps_us": round(step_us - busy_us, 1),
        "nodes": round(sum(count.values()) / num_steps, 1),
        "kernels": rows,
    }


def table(found: dict[str, Any]) -> str:
    """A profile as lines to read."""
    rows = [f"{row['us']:9.1f} us  {row['count']:6.1f} x  {row['kernel'][:110]}" for row in found["kernels"]]
    rest = found["kernels_us"] - sum(row["us"] for row in found["kernels"])
    rows.append(f"{rest:9.1f} us            other kernels")
    rows.append(f"{found['gaps_us']:9.1f} us            between kernels")
    rows.append(f"{found['step_us']:9.1f} us  {found['nodes']:6.1f} x  the step")
    head = f"{found['model']}, {found['case']}, prompts of {found['prompt_tokens']} tokens"
    return "\n".join([head, *rows])
