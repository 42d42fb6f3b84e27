"""Results that were never measured: values of known distributions, for tests of figures, reports and comparisons."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from playhead.load.exchange import Outcome
from playhead.load.figures import Answered, Slo, figures_of, window_of
from playhead.load.results import LoadResult, RunResult, Sample
from playhead.load.spec import LoadSpec


def made_request(**changes: object) -> Answered:
    plain = {
        "at_s": 0.0,
        "lag_ms": 0.0,
        "outcome": Outcome.FINISHED,
        "status": 200,
        "detail": "",
        "input_len": 8,
        "num_prompt": 8,
        "num_cached": 2,
        "num_tokens": 3,
        "first_ms": 50.0,
        "end_ms": 90.0,
        "inter_ms": 20.0,
        "is_warm_up": False,
        "gaps_ms": (20.0, 20.0),
    }
    return Answered(**(plain | changes))


def made_requests(seed: int, *, count: int = 400, slow: float = 1.0, rate: float = 20.0) -> list[Answered]:
    """Lognormal latencies, `slow` times as long, sent at a steady rate."""
    rng = np.random.default_rng(seed)
    made = []
    for i in range(count):
        first = float(50 * slow * rng.lognormal(0, 0.3))
        gaps = tuple(float(g) for g in 10 * slow * rng.lognormal(0, 0.3, 15))
        made.append(
            made_request(
                at_s=i / rate,
                num_tokens=16,
                first_ms=first,
                end_ms=first + sum(gaps),
                inter_ms=sum(gaps) / 15,
                gaps_ms=gaps,
            )
        )
    return made


def made_run(requests: list[Answered], *, rate: float | None = 20.0, samples: tuple[Sample, ...] = ()) -> RunResult:
    window = window_of(requests, warmup_s=0.0, duration_s=None)
    return RunResult(
        rate=rate,
        window=window,
        figures=figures_of(requests, window, Slo()),
        requests=tuple(requests),
        samples=samples,
        server={"graph_hit_share": 0.75} if samples else {},
    )


def made_result(*runs: RunResult, **spec: object) -> LoadResult:
    return LoadResult(
        url="http://127.0.0.1:1", model="<small> & quick", slo=Slo(), spec=asdict(LoadSpec(**spec)), runs=runs
    )
