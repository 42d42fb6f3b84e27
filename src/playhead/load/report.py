"""Results as one HTML file: tables and charts. It loads nothing from elsewhere, and has no script."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from playhead.load.compare import shown_rate
from playhead.load.drawing import Axis, Line, chart
from playhead.load.figures import PERCENTILES, Answered, Window, per_second, token_times
from playhead.load.results import LoadResult, RunResult
from playhead.load.scrape import HELD

SPREADS = {
    "first_token_ms": "time to first token, ms",
    "inter_token_ms": "inter-token latency, ms",
    "per_output_token_ms": "time per output token, ms",
    "whole_ms": "whole request, ms",
    "refusal_ms": "until a refusal, ms",
    "client_lag_ms": "lag of this client, ms",
}
COLUMNS = ("mean", *(f"p{p}" for p in PERCENTILES), "max")
BINS = 60

STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #fff; --faint: #ddd; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --paper: #161616; --faint: #3a3a3a; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
  max-width: 1360px; padding: 1rem; }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; } .wide { overflow-x: auto; }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid var(--faint); }
th:first-child, td:first-child { text-align: left; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 1rem; }
figure { margin: 0; } figcaption { font-weight: 600; } svg { width: 100%; height: auto; }
svg text { font-size: 11px; fill: currentColor; } .grid { stroke: var(--faint); stroke-width: 1; }
.c0 { stroke: #2f7ed8; } .c1 { stroke: #d9603b; } .c2 { stroke: #2a9d5c; } .c3 { stroke: #9b59b6; }
.c4 { stroke: #b8860b; } .c5 { stroke: #777; }
.dots { stroke: none; fill-opacity: .5; } .dots.c0 { fill: #2f7ed8; } .dots.c1 { fill: #d9603b; }
.dots.c2 { fill: #2a9d5c; } .dots.c3 { fill: #9b59b6; } .dots.c4 { fill: #b8860b; } .dots.c5 { fill: #777; }
"""


def report(result: LoadResult) -> str:
    """The whole page."""
    title = f"{result.model} at {result.url}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        overview(result),
        sweep(result) if len(result.runs) > 1 else "",
        *(section(run) for run in result.runs),
        "<h2>Settings</h2>",
        table(("setting", "value"), [(key, shown(value)) for key, value in {**result.spec, **result.facts}.items()]),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body>{''.join(parts)}</body></html>\n"
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    top = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {shown(one)}" for key, one in value.items())
    return ", ".join(map(shown, value)) if isinstance(value, list | tuple) else str(value)


def overview(result: LoadResult) -> str:
    """One row per run."""
    slo = result.slo
    head = (
        "rate, requests/s",
        "requests",
        "finished/s",
        "output tokens/s",
        "good requests/s",
        "good",
        "how they ended",
    )
    rows = [
        (
            shown_rate(run),
            *(shown(run.figures[key]) for key in ("requests", "requests_per_s", "output_tokens_per_s")),
            shown(run.figures["goodput_requests_per_s"]),
            f"{run.figures['good_share']:.1%}",
            shown(run.figures["outcomes"]),
        )
        for run in result.runs
    ]
    words = f"Good: finished, first token within {slo.first_ms:g} ms, at most {slo.inter_ms:g} ms per token after it."
    return f"<p>{words}</p>" + table(head, rows)


def sweep(result: LoadResult) -> str:
    """How figures change with the rate."""
    runs = [run for run in result.runs if run.rate is not None]
    rates = [float(run.rate or 0) for run in runs]
    x = Axis(label="requests/s sent")
    served = [
        Line(label=label, x=rates, y=[float(run.figures[key]) for run in runs])
        for label, key in (("finished", "requests_per_s"), ("good", "goodput_requests_per_s"))
    ]
    late = [
        Line(label=percent, x=rates, y=[float(run.figures["first_token_ms"].get(percent, "nan")) for run in runs])
        for percent in ("p50", "p99")
    ]
    charts = chart("Requests served", x, Axis(label="requests/s"), served)
    charts += chart("Time to first token by rate", x, Axis(label="ms", is_log=True), late)
    return f'<h2>Rates</h2><div class="charts">{charts}</div>'


def section(run: RunResult) -> str:
    """Tables and charts of one run."""
    rows = [
        (words, *(shown(float(run.figures[key][column])) for column in COLUMNS))
        for key, words in SPREADS.items()
        if run.figures[key]
    ]
    parts = [f"<h2>Rate {shown_rate(run)}</h2>", table(("", *COLUMNS), rows)]
    if run.server:
        parts.append(table(("of the server", ""), [(key.replace("_", " "), shown(v)) for key, v in run.server.items()]))
    counted = [one for one in run.requests if one.is_finished and not one.is_warm_up]
    charts = [*latency_charts(counted), *time_charts(run), *server_charts(run)]
    return "".join(parts) + f'<div class="charts">{"".join(charts)}</div>'


def latency_charts(requests: Sequence[Answered]) -> Iterator[str]:
    """Distributions."""
    first = [one.first_ms for one in requests if one.first_ms is not None]
    gaps = [gap for one in requests for gap in one.gaps_ms or ()]
    share, ms_axis = Axis(label="share of values at most this"), Axis(label="ms", is_log=True)
    yield chart("Time to first token", ms_axis, share, [ecdf("first token", first)])
    yield chart("Inter-token latency", ms_axis, share, [ecdf("between tokens", gaps)])


def ecdf(label: str, values: Sequence[float]) -> Line:
    """Which share of the values is at most x. An event that came together with the one before has no place on it."""
    ordered = np.sort(np.array([max(value, 1e-3) for value in values], dtype=np.float64))
    return Line(label=label, x=ordered.tolist(), y=(np.arange(1, len(ordered) + 1) / max(1, len(ordered))).tolist())


def time_charts(run: RunResult) -> Iterator[str]:
    """Over the run's time."""
    x = Axis(label="seconds")
    begun = [one for one in run.requests if one.first_ms is not None]
    first = Line(
        label="first token", x=[one.at_s for one in begun], y=[one.first_ms or 0.0 for one in begun], is_points=True
    )
    yield chart("Time to first token, by when it was sent", x, Axis(label="ms", is_log=True), [first])
    yield chart("Inter-token latency over time", x, Axis(label="ms", is_log=True), gap_lines(run))
    times = token_times(run.requests)
    whole = Window(start_s=0.0, end_s=max(run.window.end_s, float(times[-1]) if len(times) else 0.0))
    centres, rates = per_second(times, whole, BINS)
    yield chart(
        "Throughput", x, Axis(label="events/s"), [Line(label="with text", x=centres.tolist(), y=rates.tolist())]
    )


def gap_lines(run: RunResult) -> list[Line]:
    """Median and p99 of the gaps that ended in each slice of time."""
    begun = [one for one in run.requests if one.first_ms is not None and one.gaps_ms]
    if not begun:
        return []
    times = np.concatenate([token_times([one])[1:] for one in begun])
    gaps = np.concatenate([np.array(one.gaps_ms) for one in begun])
    edges = np.linspace(0, float(times.max()) + 1e-9, BINS + 1)
    places = np.digitize(times, edges) - 1
    slices = [(i, gaps[places == i]) for i in range(BINS)]
    filled = [(float(edges[i] + edges[i + 1]) / 2, values) for i, values in slices if len(values)]
    return [
        Line(
            label=f"p{percent}",
            x=[centre for centre, _ in filled],
            y=[max(1e-3, float(np.percentile(values, percent))) for _, values in filled],
        )
        for percent in (50, 99)
    ]


def server_charts(run: RunResult) -> Iterator[str]:
    """What the server said of itself, if it is one of ours."""
    samples = run.samples
    if len(samples) < 2:
        return
    x, at = Axis(label="seconds"), [sample.at_s for sample in samples]

    def line(label: str, key: str) -> Line:
        return Line(label=label, x=at, y=[sample.values.get(key, float("nan")) for sample in samples])

    yield chart("Sequences", x, Axis(label="count"), [line("running", "running"), line("waiting", "waiting")])
    groups = sorted({key for sample in samples for key in sample.values if key.startswith(HELD)})
    yield chart("KV memory held", x, Axis(label="bytes"), [line(key.removeprefix(f"{HELD}."), key) for key in groups])
    yield chart("Graph hit share", x, Axis(label="share of steps"), [hit_line(run)])


def hit_line(run: RunResult) -> Line:
    """Which share of the steps between two samples ran in a captured graph."""
    x, y = [], []
    for before, after in zip(run.samples, run.samples[1:], strict=False):
        steps = after.values.get("steps", 0.0) - before.values.get("steps", 0.0)
        eager = after.values.get("eager_steps", 0.0) - before.values.get("eager_steps", 0.0)
        if steps > 0:
            x.append(after.at_s)
            y.append(1 - eager / steps)
    return Line(label="in graphs", x=x, y=y)
