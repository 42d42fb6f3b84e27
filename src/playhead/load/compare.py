"""Two results side by side: the ratio of each figure, its interval, and whether it is more than noise.

Requests that are near in time share a queue, so they are not independent. Whole blocks of neighbours are drawn with
replacement (a block bootstrap), and each draw gives one ratio; the middle 95% of these are the interval. One run cannot
show how much runs differ from each other: measure twice before you believe a small difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from playhead.load.figures import Answered, Slo, Values, Window, token_times
from playhead.load.results import LoadResult, RunResult

NUM_BLOCKS = 20
NUM_DRAWS = 1000
LEAST_VALUES = 40
INTERVAL = (2.5, 97.5)
DEFAULT_THRESHOLD = 0.03

EDGES = np.logspace(-3, 7, 4601)
"""Milliseconds, half a percent apart. Percentiles of a draw come from counts between edges: values need no sorting."""


class Verdict(StrEnum):
    """What a difference is."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    """The whole interval is within the threshold."""
    UNCLEAR = "unclear"
    """The interval has both "no change" and changes beyond the threshold."""
    TOO_LITTLE = "too little data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One figure of both results. `ratio` is the second over the first."""

    name: str
    first: float
    second: float
    ratio: float
    low: float
    high: float
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A figure that is a sum over the run's seconds: more is better."""

    name: str
    moments: Callable[[RunResult, Slo], tuple[Values, Values]]
    """When it grew, and by how much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """A percentile of milliseconds: less is better."""

    name: str
    percent: int
    values: Callable[[Answered], Sequence[float]]


def compare(
    first: LoadResult, second: LoadResult, *, threshold: float = DEFAULT_THRESHOLD
) -> Iterator[tuple[str, list[Compared]]]:
    """Runs of the same rate, each with its figures. Two single runs are compared whatever their rates are."""
    for title, a, b in pairs(first, second):
        rng = np.random.default_rng(0)
        rows = [compared_rate(rate, (a, b), first.slo, rng, threshold) for rate in RATES]
        rows += [compared_latency(latency, (a, b), rng, threshold) for latency in LATENCIES]
        yield title, [row for row in rows if row is not None]


def pairs(first: LoadResult, second: LoadResult) -> list[tuple[str, RunResult, RunResult]]:
    if len(first.runs) == len(second.runs) == 1:
        return [(f"rate {shown_rate(first.runs[0])}", first.runs[0], second.runs[0])]
    by_rate = {run.rate: run for run in second.runs}
    return [(f"rate {shown_rate(run)}", run, by_rate[run.rate]) for run in first.runs if run.rate in by_rate]


def shown_rate(run: RunResult) -> str:
    return "inf" if run.rate is None else f"{run.rate:g}"


def differing(first: LoadResult, second: LoadResult) -> list[str]:
    """Settings that are not the same in both: their figures may not be comparable."""
    keys = sorted({*first.spec, *second.spec} - {"rate"})
    return [key for key in keys if first.spec.get(key) != second.spec.get(key)]


def counted(run: RunResult) -> list[Answered]:
    """Finished requests that count, by when they were sent."""
    return sorted((one for one in run.requests if one.is_finished and not one.is_warm_up), key=lambda one: one.at_s)


def compared_latency(
    latency: Latency, runs: tuple[RunResult, RunResult], rng: np.random.Generator, threshold: float
) -> Compared | None:
    """None if one of the results has no such values."""
    blocks = [blocks_of([latency.values(one) for one in counted(run)]) for run in runs]
    pooled = [np.concatenate(one) if one else np.zeros(0) for one in blocks]
    if not all(len(one) for one in pooled):
        return None
    points = [float(np.percentile(one, latency.percent)) for one in pooled]
    draws = [drawn_percentile(one, latency.percent, rng) for one in blocks]
    enough = min(map(len, pooled)) >= LEAST_VALUES
    return verdict_of(latency.name, points, draws, threshold=threshold, more_is_better=False, enough=enough)


def blocks_of(values: Sequence[Sequence[float]]) -> list[Values]:
    """Neighbours together, in `NUM_BLOCKS` blocks of about as many requests."""
    parts = np.array_split(np.arange(len(values)), NUM_BLOCKS)
    blocks = [np.array([value for i in part for value in values[i]], dtype=np.float64) for part in parts]
    return [block for block in blocks if len(block)]


def drawn_percentile(blocks: Sequence[Values], percent: int, rng: np.random.Generator) -> Values:
    """The percentile in each draw of blocks."""
    counts = np.array([np.histogram(np.clip(block, EDGES[0], EDGES[-1]), EDGES)[0] for block in blocks])
    used = np.flatnonzero(counts.sum(axis=0))
    counts, middles = counts[:, used], np.sqrt(EDGES[used] * EDGES[used + 1])
    totals = np.cumsum(draw_weights(len(blocks), rng) @ counts, axis=1)
    wanted = totals[:, -1:] * percent / 100
    return np.asarray(middles[np.minimum((totals < wanted).sum(axis=1), len(used) - 1)])


def draw_weights(num_blocks: int, rng: np.random.Generator) -> Values:
    """How often each block is in each draw."""
    return rng.multinomial(num_blocks, np.full(num_blocks, 1 / num_blocks), NUM_DRAWS).astype(np.float64)


def compared_rate(
    rate: Rate, runs: tuple[RunResult, RunResult], slo: Slo, rng: np.random.Generator, threshold: float
) -> Compared | None:
    sums = [slices(*rate.moments(run, slo), run.window) for run in runs]
    points = [float(one.sum()) / run.window.seconds for one, run in zip(sums, runs, strict=True)]
    if not all(points):
        return None
    draws = [draw_weights(NUM_BLOCKS, rng) @ one / run.window.seconds for one, run in zip(sums, runs, strict=True)]
    enough = min(len(counted(run)) for run in runs) >= LEAST_VALUES
    return verdict_of(rate.name, points, draws, threshold=threshold, more_is_better=True, enough=enough)


def slices(times: Values, amounts: Values, window: Window) -> Values:
    """Amounts by slice of the window."""
    edges = np.linspace(window.start_s, window.end_s, NUM_BLOCKS + 1)
    return np.histogram(times, edges, weights=amounts)[0]


def verdict_of(
    name: str, points: Sequence[float], draws: Sequence[Values], *, threshold: float, more_is_better: bool, enough: bool
) -> Compared:
    """What the interval of the ratio says."""
    ratios = draws[1] / np.maximum(draws[0], 1e-12)
    low, high = (float(one) for one in np.percentile(ratios, INTERVAL))
    ratio = points[1] / points[0]
    if not enough:
        verdict = Verdict.TOO_LITTLE
    elif 1 - threshold <= low and high <= 1 + threshold:
        verdict = Verdict.SAME
    elif low <= 1 <= high or abs(ratio - 1) <= threshold:
        verdict = Verdict.UNCLEAR
    else:
        verdict = Verdict.BETTER if (ratio > 1) is more_is_better else Verdict.WORSE
    return Compared(name=name, first=points[0], second=points[1], ratio=ratio, low=low, high=high, verdict=verdict)


def token_moments(run: RunResult, slo: Slo) -> tuple[Values, Values]:
    """Tokens by when they came. A request without its gaps counts where its first token came."""
    parts = [(token_times([one]), one.num_tokens) for one in run.requests if one.first_ms is not None]
    times = [times for times, _ in parts]
    amounts = [np.full(len(times), num_tokens / len(times)) for times, num_tokens in parts]
    return (np.concatenate(times), np.concatenate(amounts)) if parts else (np.zeros(0), np.zeros(0))


def finished_moments(run: RunResult, slo: Slo) -> tuple[Values, Values]:
    return end_moments([one for one in run.requests if one.is_finished])


def good_moments(run: RunResult, slo: Slo) -> tuple[Values, Values]:
    return end_moments([one for one in run.requests if one.is_good(slo)])


def end_moments(requests: Sequence[Answered]) -> tuple[Values, Values]:
    """Requests by when they ended."""
    return np.array([one.ended_s for one in requests], dtype=np.float64), np.ones(len(requests))


def whole_values(one: Answered) -> Sequence[float]:
    return () if one.end_ms is None else (one.end_ms,)


def first_values(one: Answered) -> Sequence[float]:
    return () if one.first_ms is None else (one.first_ms,)


def gap_values(one: Answered) -> Sequence[float]:
    return one.gaps_ms or ()


RATES = (
    Rate(name="output tokens/s", moments=token_moments),
    Rate(name="requests/s", moments=finished_moments),
    Rate(name="good requests/s", moments=good_moments),
)
LATENCIES = tuple(
    Latency(name=f"{name} p{percent}, ms", percent=percent, values=values)
    for name, values in (("first token", first_values), ("inter token", gap_values), ("whole", whole_values))
    for percent in (50, 99)
)
