"""What the engine promises on a GPU, shown: `python -m bench.engine_gpu bench/models/gemma3-1b`.

The same tokens eagerly and through full, breakable and piecewise graphs; copies and synchronisations of steady decode
steps, counted by the profiler; the audit. Dummy weights, real shapes. How fast it is: `python -m bench.h200`.
"""

from __future__ import annotations

import argparse
import collections
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from bench.measure import emit
from playhead.engine.front import RequestOptions
from playhead.llm import LLM
from playhead.sampling_params import SamplingParams
from playhead.step.audit import audit_worker

BATCH, PROMPT_TOKENS, NEW_TOKENS = 16, 128, 64  # all sizes are buckets: eager and graphs then run the same shapes
FIRST_STEPS, STEADY_STEPS = 20, 40  # the first page after the prompt ends in the former; 64 places are then reserved
MODES = ("full", "breakable", "piecewise")
SYNCS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")


def new_llm(model: Path, **settings: Any) -> LLM:
    usual: dict[str, Any] = {
        "max_num_seqs": BATCH,
        "max_num_batched_tokens": 2048,
        "max_model_len": 4096,
        "kv_memory_bytes": 1 << 31,
    }
    return LLM(
        str(model), load_format="dummy", skip_tokenizer_init=True, enable_prefix_caching=False, **(usual | settings)
    )


def prompts(count: int, num_tokens: int) -> list[list[int]]:
    rng = random.Random(count)
    return [[rng.randrange(1000, 120_000) for _ in range(num_tokens)] for _ in range(count)]


def show_equal_tokens(model: Path) -> None:
    """Greedy and drawn, in sizes that need no padding: token for token."""
    found: dict[str, list[list[int]]] = {}
    for mode in ("eager", *MODES):
        llm = new_llm(model, graph_mode=mode)
        outputs = []
        for params in (
            SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True),
            SamplingParams(temperature=0.8, seed=7, max_tokens=NEW_TOKENS, ignore_eos=True),
        ):
            outputs += llm.generate(prompts(BATCH, PROMPT_TOKENS), params)
        found[mode] = [output.outputs[0].token_ids for output in outputs]
        emit("modes", mode=mode, **llm.stats.modes)
    for mode in MODES:
        pairs = [
            (a, b) for xs, ys in zip(found["eager"], found[mode], strict=True) for a, b in zip(xs, ys, strict=True)
        ]
        emit("tokens", against="eager", mode=mode, tokens=len(pairs), different=sum(a != b for a, b in pairs))


def show_steady_steps(model: Path) -> None:
    """Decode of a batch that goes on: what reaches the device besides the replay."""
    llm = new_llm(model)
    engine = llm.engine
    params = SamplingParams(temperature=0, max_tokens=512, ignore_eos=True)
    for i, prompt in enumerate(prompts(BATCH, PROMPT_TOKENS)):
        engine.add_request(str(i), prompt, params, RequestOptions(streams=False))
    for _ in range(FIRST_STEPS):
        engine.step()
    profiled_calls(lambda: None)  # the profiler's own first start
    own, found = profiled_calls(lambda: None), profiled_calls(lambda: [engine.step() for _ in range(STEADY_STEPS)])
    found.subtract(own)
    emit(
        "steady decode",
        steps=STEADY_STEPS,
        host_to_device=sum(count for name, count in found.items() if "Memcpy HtoD" in name),
        device_to_host=sum(count for name, count in found.items() if "Memcpy DtoH" in name),
        graph_launches=found["cudaGraphLaunch"],
        kernel_launches_outside_graphs=found["cudaLaunchKernel"] + found["cuLaunchKernelEx"],
        synchronisations=sum(found[name] for name in SYNCS),
    )


def profiled_calls(work: Callable[[], object]) -> collections.Counter[str]:
    """Everything the profiler saw, on the host and on the device, by name."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        work()
    return collections.Counter(event.name for event in profiler.events())


def show_audit(model: Path) -> None:
    """Every captured size against every promise, in a small configuration: the audit copies all KV memory."""
    llm = new_llm(model, max_num_seqs=8, max_num_batched_tokens=64, max_model_len=512, kv_memory_bytes=1 << 27)
    for report in audit_worker(llm.engine.worker):
        emit("audit", runner=report.name, ok=report.ok, checks=sum(report.checked.values()))
        if not report.ok:
            print(report.text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="a directory with a config.json")
    model = parser.parse_args().model
    emit("device", name=torch.cuda.get_device_name(), torch=torch.__version__)
    show_steady_steps(model)
    show_equal_tokens(model)
    show_audit(model)


if __name__ == "__main__":
    main()
