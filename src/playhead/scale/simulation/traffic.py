"""Requests of a seed for a simulated fleet, a block at a time: ten million of them need not be in memory. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from playhead.errors import ConfigError
from playhead.scale.router import PageKey
from playhead.scale.simulation.fleet import Arrival
from playhead.scale.simulation.request import SimRequest

BLOCK = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficSpec:
    """Independent requests at `rate` a second. Each begins with one of `num_prefixes` prefixes and goes on alone.

    Prefixes are asked for as words are in a language: the k-th as often as 1 / k^`zipf`. Lengths of the rest of a
    prompt and of an answer are lognormal around the given ones. With `swing` the rate goes up and down by this share of
    itself, once in `period_s`. A router sees one key for each `router_page_tokens` of a prompt.
    """

    rate: float
    num_requests: int
    prompt_tokens: int
    output_tokens: int
    prefix_tokens: int = 0
    num_prefixes: int = 1
    zipf: float = 1.0
    sigma: float = 0.5
    max_tokens: int = 4096
    page_size: int = 16
    router_page_tokens: int = 256
    swing: float = 0.0
    period_s: float = 600.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.prefix_tokens >= self.prompt_tokens:
            raise ConfigError(
                f"traffic: found prompts of {self.prompt_tokens} tokens with {self.prefix_tokens} shared ones; "
                "wanted at least one token of its own."
            )
        if not 0 <= self.swing < 1:
            raise ConfigError(f"traffic: found a swing of {self.swing:g}; wanted at least 0 and less than 1.")

    @property
    def shared_tokens(self) -> int:
        """Whole pages of a prefix: only these can be found again."""
        return self.prefix_tokens // self.page_size * self.page_size


def arrivals(spec: TrafficSpec) -> Iterator[Arrival]:
    """All requests in the order of their arrival."""
    rng, now_s, index = np.random.default_rng(spec.seed), 0.0, 0
    weights = np.arange(1, spec.num_prefixes + 1, dtype=np.float64) ** -spec.zipf
    shares = np.cumsum(weights / weights.sum())
    while index < spec.num_requests:
        count = min(BLOCK, spec.num_requests - index)
        times = arrival_times(spec, now_s, count, rng)
        now_s = float(times[-1])
        prefixes = np.minimum(np.searchsorted(shares, rng.random(count)), spec.num_prefixes - 1)
        own = lengths(spec.prompt_tokens - spec.prefix_tokens, spec, count, rng)
        answers = lengths(spec.output_tokens, spec, count, rng)
        columns = (times.tolist(), prefixes.tolist(), (own + spec.prefix_tokens).tolist(), answers.tolist())
        for at_s, prefix, prompt_tokens, output_tokens in zip(*columns, strict=True):
            yield Arrival(
                SimRequest(
                    index=index,
                    arrival_s=at_s,
                    prompt_tokens=prompt_tokens,
                    output_tokens=output_tokens,
                    path=(prefix,) if spec.shared_tokens else (),
                    ends=(spec.shared_tokens,) if spec.shared_tokens else (),
                ),
                keys_of(spec, prefix, prompt_tokens, index),
            )
            index += 1


def arrival_times(spec: TrafficSpec, now_s: float, count: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """The next moments. Where the rate swings, time runs faster when it is high: gaps are drawn at the mean rate."""
    even = now_s_at_mean(spec, now_s) + np.cumsum(rng.exponential(1 / spec.rate, count))
    if not spec.swing:
        return even
    found = even.copy()
    turn = 2 * math.pi / spec.period_s
    for _ in range(60):  # time(s) = s + swing / turn (1 - cos(turn s)) is inverted by a contraction
        found = even - spec.swing / turn * (1 - np.cos(turn * found))
    return found


def now_s_at_mean(spec: TrafficSpec, now_s: float) -> float:
    """How far a clock that runs with the rate has come."""
    if not spec.swing:
        return now_s
    turn = 2 * math.pi / spec.period_s
    return now_s + spec.swing / turn * (1 - math.cos(turn * now_s))


def lengths(middle: int, spec: TrafficSpec, count: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Lognormal lengths with this mean, at least 1."""
    if not spec.sigma:
        return np.full(count, middle, dtype=np.int64)
    drawn = rng.lognormal(math.log(middle) - spec.sigma**2 / 2, spec.sigma, count)
    return np.clip(np.rint(drawn), 1, spec.max_tokens).astype(np.int64)


def keys_of(spec: TrafficSpec, prefix: int, prompt_tokens: int, index: int) -> Sequence[PageKey]:
    """What a router sees of a prompt: the same keys for the pages of the same prefix, others for the rest.

    Real keys are hashes of the tokens (`router.page_keys`); these are numbers as long as those.
    """
    num_shared = spec.prefix_tokens // spec.router_page_tokens
    num_pages = prompt_tokens // spec.router_page_tokens
    shared = [b"P" + (prefix << 16 | i).to_bytes(7, "big") for i in range(num_shared)]
    return shared + [b"R" + (index << 16 | i).to_bytes(7, "big") for i in range(num_shared, num_pages)]
