"""An engine under the workloads that the peers were measured with: seconds become milliseconds and tokens per second.

Prompts, lengths and repetitions are those of `workload.py`; every function gives `measured` in the unit of its cell.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Container, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from bench import workload
from playhead.graph.shapes import Reason
from playhead.llm import LLM
from playhead.sampling_params import SamplingParams

CHUNK_TOKENS = 8192
HOST_PARTS = ("plan_us", "launch_us", "wait_us", "commit_us", "device_us")
HOST_STEPS = 64
GREEDY = SamplingParams(temperature=0, ignore_eos=True)
WORKLOAD_A = {
    "greedy": GREEDY,
    "drawn": replace(GREEDY, temperature=0.6),
    "filtered": replace(GREEDY, temperature=0.6, top_p=0.9, top_k=40),
}
"""How tokens are chosen, by case."""


def workload_a() -> tuple[list[list[int]], list[int]]:
    """256 sequences, input and output lengths uniform in [100, 1024], as nano-vllm and mini-sglang publish it.

    142,827 tokens in and 133,966 out: drawn in the order in which their script draws them.
    """
    drawn = random.Random(0)
    prompts = [[drawn.randint(0, 10_000) for _ in range(drawn.randint(100, 1024))] for _ in range(256)]
    return prompts, [drawn.randint(100, 1024) for _ in range(256)]


class TimedSet(NamedTuple):
    """A set of requests: how long it took, and its tokens in and out."""

    seconds: float
    num_in: int
    num_out: int


def better(runs: Sequence[TimedSet]) -> TimedSet:
    """The run with most tokens per second, prompts included: `workload.run_all` chooses so for the peers."""
    return min(runs, key=lambda run: run.seconds / (run.num_in + run.num_out))


class MeasuredLLM:
    """A model with dummy weights, and the seconds it takes."""

    def __init__(self, model: Path, max_model_len: int, **settings: Any) -> None:
        self.llm = LLM(
            str(model),
            load_format="dummy",
            skip_tokenizer_init=True,
            max_model_len=max_model_len,
            max_num_batched_tokens=CHUNK_TOKENS,
            enable_prefix_caching=False,
            **settings,
        )

    def close(self) -> None:
        self.llm.close()

    def seconds(self, prompts: list[list[int]], out_lens: Sequence[int], params: SamplingParams = GREEDY) -> float:
        """How long these requests take when all come at once. A run that captured a size is repeated."""
        wanted = [replace(params, max_tokens=n) for n in out_lens]
        while True:
            num_captured = self._num_captured()
            started_s = time.perf_counter()
            outputs = self.llm.generate(prompts, wanted)
            elapsed_s = time.perf_counter() - started_s
            found = [len(output.outputs[0].token_ids) for output in outputs]
            if found != list(out_lens):
                raise RuntimeError(f"tokens of the requests: found {found[:4]}...; wanted {list(out_lens)[:4]}...")
            if self._num_captured() == num_captured:
                return elapsed_s

    def _num_captured(self) -> int:
        return sum(count for mode, count in self.llm.stats.modes.items() if mode.endswith(Reason.CAPTURE_NOW))

    def decode_ms(self, batch: int, prompt_tokens: int, rounds: int) -> dict[str, Any]:
        """One decode step: (time with 256 new tokens - time with 1) / 255; and the host's parts of such a step."""
        # A few long prompts capture the sizes of their chunks; the short ones capture the decode step.
        for num_requests, num_tokens in ((min(batch, 8), prompt_tokens), (batch, workload.DECODE_PROMPT)):
            self.seconds(workload.prompts(f"warm{batch}", [num_tokens] * num_requests), [16] * num_requests)
        one_s, full_s = [], []
        for i in range(rounds):
            lens = [prompt_tokens] * batch
            one_s.append(self.seconds(workload.prompts(f"d1.{batch}.{i}", lens), [1] * batch))
            full_s.append(self.seconds(workload.prompts(f"d.{batch}.{i}", lens), [workload.DECODE_NEW] * batch))
        step_s = (statistics.median(full_s) - statistics.median(one_s)) / (workload.DECODE_NEW - 1)
        return {"measured": 1e3 * step_s, **self.host_medians([batch])}

    def prefill_ms(self, batch: int, prompt_tokens: int) -> dict[str, Any]:
        """The time to the first token of prompts that come at once."""
        lens, one = [prompt_tokens] * batch, [1] * batch
        tags = [f"p{kind}{batch}x{prompt_tokens}.{i}" for kind, count in (("w", 2), ("", 5)) for i in range(count)]
        times = [self.seconds(workload.prompts(tag, lens), one) for tag in tags]
        return {"measured": 1e3 * statistics.median(times[2:])}

    def mixed_tokens_per_s(self) -> dict[str, Any]:
        """Output tokens per second of the better of two sets of requests."""
        runs = []
        for prompts, out_lens in (workload.throughput_set(f"throughput{i}") for i in range(2)):
            runs.append(TimedSet(self.seconds(prompts, out_lens), sum(map(len, prompts)), sum(out_lens)))
        best = better(runs)
        return {"measured": best.num_out / best.seconds, **self.host_medians()}

    def workload_a_tokens_per_s(self, case: str) -> dict[str, Any]:
        """Output tokens per second, the better of two runs."""
        prompts, out_lens = workload_a()
        rates = [sum(out_lens) / self.seconds(prompts, out_lens, WORKLOAD_A[case]) for _ in range(2)]
        return {"measured": max(rates), **self.host_medians()}

    def host_us(self, batch: int, *, changes: bool) -> dict[str, Any]:
        """Plan, launch and commit of a decode step; with `changes`, of steps that each lose a request."""
        out_lens = [HOST_STEPS + (min(i, HOST_STEPS // 2) if changes else 0) for i in range(batch)]
        self.seconds(workload.prompts(f"host{batch}", [workload.DECODE_PROMPT] * batch), out_lens)
        sizes = range(batch - HOST_STEPS // 2 + 1, batch) if changes else range(batch, batch + 1)
        parts = self.host_medians(sizes, newest=HOST_STEPS)
        return {"measured": parts["plan_us"] + parts["launch_us"] + parts["commit_us"], **parts}

    def host_medians(self, sizes: Container[int] | None = None, newest: int = 200) -> dict[str, float]:
        """Microseconds of each part of a decode step, over the newest steps with so many requests."""
        steps = (step for step in self.llm.engine.timeline.newest(newest) if step.raw == step.num_requests)
        found = [asdict(step) for step in steps if sizes is None or step.num_requests in sizes]
        return {part: statistics.median(step[part] for step in found) for part in HOST_PARTS} if found else {}
