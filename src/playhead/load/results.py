"""Results of a load as a file: what was asked, what came of every request, what it adds up to. JSON, one object."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from playhead.errors import ConfigError
from playhead.load.exchange import Outcome
from playhead.load.figures import Answered, Slo, Window

FORMAT = "playhead bench serve 1"
MAX_KEPT_GAPS = 400_000
"""Of a run. Beyond, every second, third, ... request keeps none of its gaps; its mean stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Some of the server's metrics at one moment of a run."""

    at_s: float
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """One run at one rate. `rate` is None where all requests were sent at once."""

    rate: float | None
    window: Window
    figures: Mapping[str, Any]
    requests: tuple[Answered, ...]
    samples: tuple[Sample, ...] = ()
    server: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """All runs of a command. `facts` has what is needed to measure the same again; no key is among them."""

    url: str
    model: str
    slo: Slo
    spec: Mapping[str, Any]
    runs: tuple[RunResult, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Infinities become None: JSON has none."""
        kept = replace(self, runs=tuple(replace(run, requests=thinned(run.requests)) for run in self.runs))
        path.write_text(json.dumps({"format": FORMAT, **finite(asdict(kept))}) + "\n", encoding="utf-8")


def thinned(requests: Sequence[Answered]) -> tuple[Answered, ...]:
    """The same requests, with the gaps of so few that a file stays small."""
    total = sum(len(one.gaps_ms or ()) for one in requests)
    step = math.ceil(total / MAX_KEPT_GAPS)
    if step <= 1:
        return tuple(requests)
    return tuple(one if i % step == 0 else replace(one, gaps_ms=None) for i, one in enumerate(requests))


def finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_results(path: Path) -> LoadResult:
    """What `write` wrote."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"{path.name}: cannot be read ({type(error).__name__}). Give a file of bench serve."
        ) from None
    except ValueError:
        raise ConfigError(f"{path.name}: found no JSON; wanted a file that bench serve wrote with --json.") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ConfigError(f"{path.name}: found another format; wanted {FORMAT!r}. Write it with bench serve --json.")
    try:
        return LoadResult(
            url=str(content["url"]),
            model=str(content["model"]),
            slo=Slo(**content["slo"]),
            spec=content["spec"],
            runs=tuple(read_run(run) for run in content["runs"]),
            facts=content["facts"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path.name}: a field is missing or wrong ({error}). Write the file again.") from None


def read_run(run: Mapping[str, Any]) -> RunResult:
    return RunResult(
        rate=run["rate"],
        window=Window(**run["window"]),
        figures=run["figures"],
        requests=tuple(read_answered(one) for one in run["requests"]),
        samples=tuple(Sample(**one) for one in run["samples"]),
        server=run["server"],
    )


def read_answered(given: Mapping[str, Any]) -> Answered:
    values = {one.name: given[one.name] for one in fields(Answered)}
    gaps = values["gaps_ms"]
    return Answered(
        **(values | {"outcome": Outcome(values["outcome"]), "gaps_ms": None if gaps is None else tuple(gaps)})
    )
