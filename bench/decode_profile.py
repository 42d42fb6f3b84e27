"""Where the time of a decode step goes: microseconds of each kernel, seen by the profiler inside the graph."""

from __future__ import annotations

import collections
import statistics
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from bench import workload
from bench.measured_llm import GREEDY
from playhead.engine.engine import Engine
from playhead.engine.front import RequestOptions

FIRST_STEPS, STEPS = 8, 24
TOP = 24  # kernels that get a row of their own
IN_FRONT = 3  # kernels that tell two equal ones apart: qkv and gate-up both stand behind a norm


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
        Span(event.name, event.time_range.start, event.time_range.end)
        for event in profiler.events()
        if event.device_type.name == "CUDA"
    ]
    for i in range(batch):
        engine.abort(f"profile{i}")
    while engine.has_work:
        engine.step()
    return summed(kernels, STEPS, step_us)


class Span(NamedTuple):
    """A kernel's place in time, in microseconds."""

    name: str
    start: float
    end: float


def summed(kernels: list[Span], num_steps: int, step_us: float) -> dict[str, Any]:
    """What one step takes of these kernels, by those that stand in front of them.

    A kernel of 3 us and another of 2 us in a step of 6 us leave 1 us between kernels. `adds_us` is a kernel's part of
    the step: from the end of the kernel in front to its own end. `own_us` is from its start to its end.
    """
    places: dict[tuple[str, str], list[tuple[float, float]]] = collections.defaultdict(list)
    in_order = sorted(kernels, key=lambda span: span.end)
    for i, span in enumerate(in_order[IN_FRONT:]):
        *_, before = in_front = in_order[i : i + IN_FRONT]
        names = " < ".join(one.name[:20] for one in reversed(in_front))
        places[span.name, names].append((span.end - span.start, span.end - before.end))
    busy_us = sum(span.end - span.start for span in kernels) / num_steps
    rows: list[dict[str, Any]] = [
        {
            "kernel": name,
            "behind": before,
            "count": round(len(found) / num_steps, 1),
            "own_us": round(statistics.median(own for own, _ in found), 2),
            "adds_us": round(statistics.median(adds for _, adds in found), 2),
        }
        for (name, before), found in places.items()
    ]
    rows.sort(key=lambda row: -row["adds_us"] * row["count"])
    return {
        "step_us": round(step_us, 1),
        "kernels_us": round(busy_us, 1),
        "gaps_us": round(step_us - busy_us, 1),
        "nodes": round(len(kernels) / num_steps, 1),
        "kernels": rows[:TOP],
    }


def table(found: dict[str, Any]) -> str:
    """A profile as lines to read."""
    rows = ["  a step    adds     own   count  kernel < those in front"]
    for row in found["kernels"]:
        names = f"{row['kernel'][:40]} < {row['behind']}"
        all_us = row["adds_us"] * row["count"]
        rows.append(f"{all_us:8.1f} {row['adds_us']:7.2f} {row['own_us']:7.2f} {row['count']:7.1f}  {names}")
    rows.append(f"{found['step_us']:8.1f} us, {found['nodes']:.1f} nodes, {found['kernels_us']:.1f} us of kernels")
    head = f"{found['model']}, {found['case']}, prompts of {found['prompt_tokens']} tokens"
    return "\n".join([head, *rows])
