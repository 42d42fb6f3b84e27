"""Random prompts of a seed, and what it took an engine to answer them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from playhead.cli.options import WorkloadSpec
from playhead.engine.front import RequestOptions
from playhead.engine.timeline import EngineStats
from playhead.errors import ConfigError
from playhead.llm import LLM
from playhead.load.figures import mean_and_shares
from playhead.outputs import RequestOutput
from playhead.sampling_params import SamplingParams

SHOWN_PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Prompts and how many tokens each is to be answered with."""

    prompts: tuple[tuple[int, ...], ...]
    params: tuple[SamplingParams, ...]

    @property
    def longest(self) -> int:
        return max(len(prompt) + (one.max_tokens or 0) for prompt, one in zip(self.prompts, self.params, strict=True))


def random_workload(spec: WorkloadSpec, vocab_size: int, *, variant: int = 0) -> Workload:
    """The same prompts for the same seed; another `variant` has the same lengths and other tokens."""
    lengths, tokens = np.random.default_rng(spec.seed % 2**64), np.random.default_rng((spec.seed % 2**64, variant))

    def draw(length: int) -> list[int]:
        low, high = (int(length * (1 + sign * spec.random_range_ratio)) for sign in (-1, 1))
        return [max(1, int(n)) for n in lengths.integers(low, high + 1, spec.num_prompts)]

    input_lens, output_lens = draw(spec.input_len), draw(spec.output_len)
    return Workload(
        prompts=tuple(tuple(tokens.integers(0, vocab_size, n).tolist()) for n in input_lens),
        params=tuple(spec.params(n) for n in output_lens),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One pass over a workload. `token_times_s` has, per prompt, when it was sent and when each token came."""

    seconds: float
    num_input_tokens: int
    num_output_tokens: int
    token_times_s: tuple[tuple[float, ...], ...]
    stats: EngineStats

    @property
    def first_token_ms(self) -> list[float]:
        return [(times[1] - times[0]) * 1e3 for times in self.token_times_s]

    @property
    def between_tokens_ms(self) -> list[float]:
        return [float(gap) * 1e3 for times in self.token_times_s for gap in np.diff(times[1:])]

    @property
    def all_begun_s(self) -> float:
        """When the last prompt had its first token, from the start."""
        start = min(times[0] for times in self.token_times_s)
        return max(times[1] for times in self.token_times_s) - start


def run_workload(llm: LLM, workload: Workload, on_finished: Callable[[RequestOutput], None]) -> Run:
    """Send everything as fast as the queue takes it, and step until all is answered."""
    engine = llm.engine
    most = engine.worker.config.limits.max_context_tokens
    if workload.longest > most:
        raise ConfigError(
            f"--input-len and --output-len: found {workload.longest} tokens together; wanted at most "
            f"{most}, the context. Lower one of them or raise --max-model-len."
        )
    pairs = zip(workload.prompts, workload.params, strict=True)
    requests = [(f"bench {i}", prompt, params) for i, (prompt, params) in enumerate(pairs)]
    times: dict[str, list[float]] = {name: [] for name, *_ in requests}
    before = engine.stats.copy()
    with closing(llm.outputs_of(requests, RequestOptions())) as outputs:
        for output in outputs:
            seen = times[output.request_id]
            if not seen:
                seen.append(output.metrics.arrival_s)
            seen += [time.perf_counter()] * (1 + len(output.outputs[0].token_ids) - len(seen))
            if output.finished:
                on_finished(output)
    return Run(
        seconds=time.perf_counter() - min(seen[0] for seen in times.values()),
        num_input_tokens=sum(map(len, workload.prompts)),
        num_output_tokens=sum(len(seen) - 1 for seen in times.values()),
        token_times_s=tuple(tuple(seen) for seen in times.values()),
        stats=engine.stats.since(before),
    )


def spread(values: Sequence[float], percentiles: Sequence[int] = SHOWN_PERCENTILES) -> dict[str, float]:
    """Mean and percentiles; of nothing, nothing."""
    return mean_and_shares(values, percentiles)
