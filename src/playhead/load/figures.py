"""What a load's exchanges add up to: percentiles, throughput, goodput."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from playhead.load.exchange import Exchange, Outcome

PERCENTILES = (50, 90, 95, 99)
Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """A request is good if it finished, its first token came in time, and so did the others, in the mean. In ms."""

    first_ms: float = 1000.0
    inter_ms: float = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """One exchange as the results keep it. Seconds count from the start of the load; what did not happen is None.

    `lag_ms` is how late the client sent the request. `gaps_ms` is None where it was left out to keep a file small.
    """

    at_s: float
    lag_ms: float
    outcome: Outcome
    status: int
    detail: str
    input_len: int
    num_prompt: int
    num_cached: int
    num_tokens: int
    first_ms: float | None
    end_ms: float | None
    inter_ms: float | None
    is_warm_up: bool
    gaps_ms: tuple[float, ...] | None = None

    @property
    def is_finished(self) -> bool:
        return self.outcome is Outcome.FINISHED

    @property
    def ended_s(self) -> float:
        """When it ended, from the start of the load."""
        return self.at_s + (self.lag_ms + (self.end_ms or 0.0)) / 1e3

    def is_good(self, slo: Slo) -> bool:
        return (
            self.is_finished
            and (self.first_ms is None or self.first_ms <= slo.first_ms)
            and (self.inter_ms is None or self.inter_ms <= slo.inter_ms)
        )


def answered(exchange: Exchange, started_s: float) -> Answered:
    """An exchange that has ended. `inter_ms` is the mean over tokens after the first."""
    plan = exchange.plan
    was_sent, has_text = exchange.sent_s > 0, exchange.num_events > 0
    num_after = exchange.num_tokens - 1
    return Answered(
        at_s=round(plan.at_s, 6),
        lag_ms=ms(exchange.sent_s - started_s - plan.at_s) if was_sent else 0.0,
        outcome=exchange.outcome,
        status=exchange.status,
        detail=exchange.detail,
        input_len=plan.input_len,
        num_prompt=exchange.num_prompt,
        num_cached=exchange.num_cached,
        num_tokens=exchange.num_tokens,
        first_ms=ms(exchange.first_s - exchange.sent_s) if has_text else None,
        end_ms=ms(exchange.end_s - exchange.sent_s) if was_sent else None,
        inter_ms=ms((exchange.last_s - exchange.first_s) / num_after) if has_text and num_after > 0 else None,
        is_warm_up=plan.is_warm_up,
        gaps_ms=tuple(ms(gap) for gap in exchange.gaps_s),
    )


def ms(seconds: float) -> float:
    return round(seconds * 1e3, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The part of a load that counts, in seconds from its start."""

    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        return max(self.end_s - self.start_s, 1e-9)


def window_of(requests: Sequence[Answered], *, warmup_s: float, duration_s: float | None) -> Window:
    """With a duration it is that time. Without, it ends with the last answer."""
    ends = [one.ended_s for one in requests if one.end_ms is not None]
    start_s = min((one.at_s for one in requests if not one.is_warm_up), default=0.0) if duration_s is None else warmup_s
    return Window(start_s=start_s, end_s=warmup_s + duration_s if duration_s is not None else max(ends, default=0.0))


def figures_of(requests: Sequence[Answered], window: Window, slo: Slo) -> dict[str, object]:
    """Everything a table shows. Latencies are of requests sent in the window; rates have what ended or came in it."""
    counted = [one for one in requests if not one.is_warm_up]
    finished = [one for one in counted if one.is_finished]
    ended = [one for one in requests if one.is_finished and window.start_s <= one.ended_s <= window.end_s]
    good = [one for one in ended if one.is_good(slo)]
    refused = [one for one in counted if one.outcome is Outcome.REFUSED]
    seconds = window.seconds
    return {
        "seconds": seconds,
        "requests": len(counted),
        "outcomes": dict(Counter(str(one.outcome) for one in counted)),
        "statuses": dict(Counter(str(one.status) for one in counted)),
        "requests_per_s": len(ended) / seconds,
        "output_tokens_per_s": tokens_in(requests, window) / seconds,
        "goodput_requests_per_s": len(good) / seconds,
        "goodput_tokens_per_s": sum(one.num_tokens for one in good) / seconds,
        "good_share": sum(one.is_good(slo) for one in counted) / max(1, len(counted)),
        "cached_share": sum(one.num_cached for one in finished) / max(1, sum(one.num_prompt for one in finished)),
        "first_token_ms": spread([one.first_ms for one in finished if one.first_ms is not None]),
        "inter_token_ms": spread([gap for one in finished for gap in one.gaps_ms or ()]),
        "per_output_token_ms": spread([one.inter_ms for one in finished if one.inter_ms is not None]),
        "whole_ms": spread([one.end_ms for one in finished if one.end_ms is not None]),
        "refusal_ms": spread([one.end_ms for one in refused if one.end_ms is not None]),
        "client_lag_ms": spread([one.lag_ms for one in counted]),
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Mean, percentiles and the largest; of nothing, nothing."""
    return {**mean_and_shares(values, PERCENTILES), "max": float(np.max(values))} if values else {}


def mean_and_shares(values: Sequence[float], percentiles: Sequence[int]) -> dict[str, float]:
    """Mean and percentiles; of nothing, nothing."""
    if not values:
        return {}
    shares = {f"p{p}": float(np.percentile(values, p)) for p in percentiles}
    return {"mean": float(np.mean(values)), **shares}


def token_times(requests: Sequence[Answered]) -> Values:
    """When each event with text came, in seconds from the start of the load, ascending."""
    parts = [
        np.cumsum([one.at_s + (one.lag_ms + one.first_ms) / 1e3, *(gap / 1e3 for gap in one.gaps_ms or ())])
        for one in requests
        if one.first_ms is not None
    ]
    return np.sort(np.concatenate(parts)) if parts else np.zeros(0)


def tokens_in(requests: Sequence[Answered], window: Window) -> float:
    """Tokens that came in the window. An event may hold several tokens: each counts its request's mean."""
    total = 0.0
    for one in requests:
        if one.first_ms is not None:
            times = token_times([one])
            inside = np.count_nonzero((times >= window.start_s) & (times <= window.end_s))
            total += inside * one.num_tokens / len(times)
    return total


def per_second(times: Values, window: Window, num_bins: int) -> tuple[Values, Values]:
    """Bin centres and events per second in them."""
    edges = np.linspace(window.start_s, window.end_s, num_bins + 1)
    counts, _ = np.histogram(times, edges)
    return (edges[:-1] + edges[1:]) / 2, counts / np.diff(edges)
