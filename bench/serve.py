"""The peers' workload on Playhead: `python -m bench.serve bench/models/gemma3-1b [--only decode] [--bs 1,128]`.

`workload.py` is kept as it was run on vLLM and SGLang, so that figures compare: dummy weights of the real shapes,
greedy, no prefix cache. Prints its JSON lines.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from bench import workload
from playhead.graph.spec import CaptureReport
from playhead.llm import LLM
from playhead.sampling_params import SamplingParams


def generator(llm: LLM) -> Callable[[list[list[int]], list[int]], list[int]]:
    """The one function that the workload asks of an engine."""

    def gen(prompts: list[list[int]], out_lens: list[int]) -> list[int]:
        params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in out_lens]
        return [len(output.outputs[0].token_ids) for output in llm.generate(prompts, params)]

    return gen


def capture(llm: LLM, emit: workload.Emit) -> None:
    """All graphs, with what they took."""
    reports: list[CaptureReport] = []
    started = time.perf_counter()
    llm.capture_graphs(reports.append)
    emit(
        "graphs",
        seconds=round(time.perf_counter() - started, 2),
        graphs=len(reports),
        mib=round(sum(report.num_bytes for report in reports) / 2**20, 1),
        nodes={f"{report.size}": report.num_nodes for report in reports if report.done == report.total},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="a directory with a config.json")
    parser.add_argument("--only", default="prefill,decode,throughput")
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--bs", default=",".join(map(str, workload.DECODE_BS)))
    parser.add_argument("--graph-mode", default="full", choices=["full", "breakable", "piecewise", "eager"])
    parser.add_argument("--max-num-batched-tokens", type=int, default=8192)
    parser.add_argument("--lazy", action="store_true", help="capture a size when it is first wanted, not all before")
    args = parser.parse_args()
    base = {"engine": "playhead", "model": args.model.name, "variant": args.graph_mode}
    emit = workload.Emit(base)
    started = time.perf_counter()
    llm = LLM(
        str(args.model),
        load_format="dummy",
        skip_tokenizer_init=True,
        max_model_len=workload.MAX_LEN,
        max_num_batched_tokens=args.max_num_batched_tokens,
        graph_mode=args.graph_mode,
        enable_prefix_caching=False,
    )
    if args.graph_mode != "eager" and not args.lazy:
        capture(llm, emit)
    emit(
        "ready",
        since_process_start_s=round(workload.since_start(), 2),
        engine_init_s=round(time.perf_counter() - started, 2),
    )
    sizes = tuple(int(size) for size in args.bs.split(","))
    workload.run_all(generator(llm), emit, only=args.only.split(","), reps=args.reps, decode_bs=sizes)
    emit("decode step", **step_medians(llm))
    emit("modes", **llm.stats.modes)


def step_medians(llm: LLM) -> dict[str, float]:
    """Microseconds of each part of the last decode steps."""
    steps = [asdict(step) for step in llm.engine.timeline if step.raw == step.num_requests][-200:]
    names = ("plan_us", "launch_us", "wait_us", "commit_us", "device_us")
    return {name: round(statistics.median(step[name] for step in steps), 1) for name in names} if steps else {}


if __name__ == "__main__":
    main()
