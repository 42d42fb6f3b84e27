"""More load than a server can bear: `python -m bench.overload [--seconds 60] [--factor 4] [--base-url URL]`.

Measures what the server does when it is just busy (as many requests at a time as can run), then sends `factor` times as
many as it finished, then measures the peak again: a machine with other work on it shows by two different peaks. Wanted:
the server lives, refuses the excess at once, and its good work does not suffer. Prints a table.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from playhead.load.client import Target, fetch
from playhead.load.figures import Slo
from playhead.load.measure import Measure, measure, served_model
from playhead.load.own_server import own_server
from playhead.load.report import report
from playhead.load.results import LoadResult, RunResult
from playhead.load.scrape import series
from playhead.load.spec import LengthKind, LoadSpec

REFUSAL_MS = 50.0
LEAST_SHARE = 0.9
COLUMNS = (
    *("load", "sent/s", "finished/s", "tokens/s", "good tokens/s", "refused", "refusal p50 / p99 / max ms"),
    *("first token p50 / p99 ms", "other ends"),
)


@contextmanager
def target_of(args: argparse.Namespace) -> Iterator[Target]:
    if args.base_url:
        yield Target.of(args.base_url)
        return
    with own_server(args.model, shlex.split(args.server_flags)) as target:
        yield target


async def max_running(target: Target) -> int:
    """How many sequences run at a time, as the server says."""
    text = (await fetch(target, "/metrics")).content.decode()
    return int(next(value for name, _, value in series(text) if name == "playhead_max_requests_running"))


def row(name: str, run: RunResult) -> str:
    figures = run.figures
    refusal, first = figures["refusal_ms"], figures["first_token_ms"]
    others = {word: n for word, n in figures["outcomes"].items() if word not in ("finished", "refused")}
    cells = [
        name,
        "all at once" if run.rate is None else f"{run.rate:.1f}",
        f"{figures['requests_per_s']:.2f}",
        f"{figures['output_tokens_per_s']:.1f}",
        f"{figures['goodput_tokens_per_s']:.1f}",
        f"{figures['outcomes'].get('refused', 0)}",
        f"{refusal['p50']:.1f} / {refusal['p99']:.1f} / {refusal['max']:.1f}" if refusal else "-",
        f"{first['p50']:.0f} / {first['p99']:.0f}" if first else "-",
        ", ".join(f"{n} {word}" for word, n in others.items()) or "-",
    ]
    return f"| {' | '.join(cells)} |"


def verdicts(peaks: list[RunResult], over: RunResult, *, is_alive: bool) -> Iterator[str]:
    share = over.figures["goodput_tokens_per_s"] / max(run.figures["goodput_tokens_per_s"] for run in peaks)
    refusal = over.figures["refusal_ms"]
    yield f"{'ok' if is_alive else 'FAILED'}: the server answers after the load"
    if refusal:
        is_quick = refusal["p99"] < REFUSAL_MS
        words = f"refusals p99 {refusal['p99']:.1f} ms, largest {refusal['max']:.1f} ms"
        yield f"{'ok' if is_quick else 'FAILED'}: {words}; wanted below {REFUSAL_MS:g}"
    else:
        yield "FAILED: nothing was refused, so this was no overload"
    yield f"{'ok' if share >= LEAST_SHARE else 'FAILED'}: goodput {share:.1%} of the peak; wanted {LEAST_SHARE:.0%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--base-url", default="")
    parser.add_argument("--server-flags", default="--max-model-len 512 --log-level warning")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--factor", type=float, default=4.0)
    parser.add_argument("--input-len", type=int, default=32)
    parser.add_argument("--output-len", type=int, default=32)
    parser.add_argument("--slo-first-ms", type=float, default=20_000.0)
    parser.add_argument("--slo-inter-ms", type=float, default=1_000.0)
    parser.add_argument("--html", type=Path)
    args = parser.parse_args()
    spec = LoadSpec(input_len=args.input_len, output_len=args.output_len, lengths=LengthKind.UNIFORM)
    with target_of(args) as target:
        num_running = asyncio.run(max_running(target))
        asked = Measure(
            target=target,
            model=asyncio.run(served_model(target)),
            spec=spec,
            slo=Slo(first_ms=args.slo_first_ms, inter_ms=args.slo_inter_ms),
        )
        busy = peak(asked, num_running, args.seconds)
        rate = args.factor * busy.runs[0].figures["requests_per_s"]
        flood = replace(spec, rate=(rate,), duration=args.seconds, warmup=min(5.0, args.seconds / 4), seed=1)
        over = asyncio.run(measure(replace(asked, spec=flood)))
        is_alive = asyncio.run(fetch(target, "/ready")).status == 200
        again = peak(asked, num_running, args.seconds)
    print(
        f"{asked.model}, {num_running} running at a time, prompts of {args.input_len} words, {args.output_len} tokens"
    )
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    print(row("peak", busy.runs[0]))
    print(row(f"{args.factor:g} x", over.runs[0]))
    print(row("peak again", again.runs[0]))
    print("\n".join(verdicts([busy.runs[0], again.runs[0]], over.runs[0], is_alive=is_alive)))
    if args.html:
        args.html.write_text(report(over), encoding="utf-8")


def peak(asked: Measure, num_running: int, seconds: float) -> LoadResult:
    """As many requests at a time as can run, none of which waits, after a warm-up that captures graphs."""

    def closed_loop(num_prompts: int, seed: int) -> LoadResult:
        spec = replace(asked.spec, num_prompts=num_prompts, seed=seed)
        return asyncio.run(measure(replace(asked, spec=spec, max_concurrency=num_running)))

    closed_loop(2 * num_running, 2)
    rate = closed_loop(4 * num_running, 3).runs[0].figures["requests_per_s"]
    return closed_loop(max(4 * num_running, int(rate * seconds / 2)), 0)


if __name__ == "__main__":
    main()
