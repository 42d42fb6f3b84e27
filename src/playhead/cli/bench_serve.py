"""What `playhead bench serve` and `playhead bench compare` do and print."""

from __future__ import annotations

import asyncio
import json
import math
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from playhead.cli.load_options import BenchServeOptions, CompareOptions
from playhead.cli.screen import Screen
from playhead.engine.config import EMBEDDED
from playhead.env import key_of, user_path
from playhead.load.client import Load, Target
from playhead.load.compare import Verdict, compare, differing, shown_rate
from playhead.load.exchange import Outcome
from playhead.load.figures import Slo
from playhead.load.measure import Measure, OnTick, measure, served_model
from playhead.load.own_server import own_server
from playhead.load.report import COLUMNS, SPREADS, report
from playhead.load.results import LoadResult, RunResult, read_results
from playhead.load.spec import LoadSpec

NOT_SERVED, WORSE = 1, 1
SINGLE = {
    "requests_per_s": "requests/s",
    "output_tokens_per_s": "output tokens/s",
    "goodput_requests_per_s": "good requests/s",
    "goodput_tokens_per_s": "good tokens/s",
}
OF_SERVER = {
    "graph_hit_share": "steps in graphs",
    "prefix_hit_share": "prompt tokens cached",
    "max_kv_usage": "KV used",
}


def run_bench_serve(screen: Screen, options: BenchServeOptions, spec: LoadSpec) -> int:
    """Measure, print, write. The exit code is 1 if not one request was answered."""
    with target_of(options) as target, bar() as on_tick:
        model = options.model if options.base_url is not None else None
        asked = Measure(
            target=target,
            model=model or asyncio.run(served_model(target)),
            spec=spec,
            endpoint=options.endpoint,
            slo=Slo(first_ms=options.slo_first_ms, inter_ms=options.slo_inter_ms),
            give_up_after_s=options.timeout,
            max_concurrency=options.max_concurrency,
        )
        result = asyncio.run(measure(asked, on_tick))
    for run in result.runs:
        show_run(screen, result, run)
    if options.json_path is not None:
        result.write(options.json_path)
    if options.html_path is not None:
        options.html_path.write_text(report(result), encoding="utf-8")
    return 0 if any(one.is_finished for run in result.runs for one in run.requests) else NOT_SERVED


@contextmanager
def target_of(options: BenchServeOptions) -> Iterator[Target]:
    """The server that was named, or one of our own."""
    if options.base_url is not None:
        yield Target.of(options.base_url, key=key_of(options.key_variable))
        return
    with own_server(options.model or EMBEDDED, shlex.split(options.server_flags)) as target:
        yield target


@contextmanager
def bar() -> Iterator[OnTick]:
    """A bar over requests with tokens per second, on stderr where that is a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    speed = TextColumn("{task.fields[speed]}")
    shown = Progress(
        *columns, speed, console=console, transient=True, disable=not console.is_terminal, auto_refresh=False
    )
    tasks: dict[int, TaskID] = {}
    last: dict[int, tuple[int, float]] = {}

    def on_tick(rate: float, load: Load) -> None:
        if shown.disable:
            return
        name = "sending" if math.isinf(rate) else f"{rate:g} requests/s"
        task = tasks.setdefault(id(load), TaskID(len(tasks)))
        if task == len(shown.tasks):
            shown.add_task(name, total=len(load.exchanges), speed="")
        num_tokens, now_s = sum(exchange.num_events for exchange in load.exchanges), shown.get_time()
        before, before_s = last.get(id(load), (0, now_s - 1))
        last[id(load)] = num_tokens, now_s
        rate_now = (num_tokens - before) / max(now_s - before_s, 1e-3)
        num_open = load.num_sent - load.num_ended
        shown.update(task, completed=load.num_ended, speed=f"{rate_now:,.0f} tokens/s, {num_open} open")
        shown.refresh()

    with shown:
        yield on_tick


def show_run(screen: Screen, result: LoadResult, run: RunResult) -> None:
    """One run as a table."""
    figures = run.figures
    table, spreads = Table.grid(padding=(0, 2)), Table.grid(padding=(0, 2))
    ended = figures["outcomes"]
    counts = ", ".join(f"{ended[word]:,} {word}" for word in map(str, Outcome) if word in ended)
    table.add_row("  requests", counts or "none")
    for key, words in SINGLE.items():
        table.add_row(f"  {words}", f"{figures[key]:,.2f}")
    for key, words in OF_SERVER.items():
        if key in run.server:
            table.add_row(f"  {words}", f"{run.server[key]:.1%}")
    spreads.add_row("", *COLUMNS)
    for key, words in SPREADS.items():
        if figures[key]:
            spreads.add_row(f"  {words}", *(f"{figures[key][column]:,.1f}" for column in COLUMNS))
    title = f"{result.model} at {result.url}, {shown_rate(run)} requests/s for {run.window.seconds:,.1f} s"
    screen.print(title, style="bold", highlight=False, markup=False)
    screen.print(table)
    screen.print(spreads)


def run_compare(screen: Screen, options: CompareOptions) -> int:
    """Print a row per figure. The exit code is 1 if one is worse."""
    first, second = (read_results(user_path(path)) for path in (options.first, options.second))
    compared = list(compare(first, second, threshold=options.threshold))
    if options.as_json:
        rows = [{"run": title, **asdict(row)} for title, found in compared for row in found]
        screen.out(json.dumps(rows, indent=2), highlight=False)
    else:
        for key in differing(first, second):
            found, wanted = first.spec.get(key), second.spec.get(key)
            screen.print(f"not the same load: {key} is {found} and {wanted}", highlight=False, markup=False)
        for title, found_rows in compared:
            table = Table.grid(padding=(0, 2))
            table.add_row("", "first", "second", "ratio", "95%", "")
            for row in found_rows:
                between = f"{row.low:.3f} to {row.high:.3f}"
                table.add_row(
                    f"  {row.name}", f"{row.first:,.2f}", f"{row.second:,.2f}", f"{row.ratio:.3f}", between, row.verdict
                )
            screen.print(title, style="bold", highlight=False)
            screen.print(table)
        if not compared:
            screen.print("no run of one has the rate of a run of the other")
    return WORSE if any(row.verdict is Verdict.WORSE for _, rows in compared for row in rows) else 0
