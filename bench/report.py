"""The scorecard as tables and plots: `python -m bench.report RESULTS.jsonl [--plots docs/figures]`.

Reads the lines that `python -m bench.h200 --json RESULTS.jsonl` wrote. Of a number that was measured twice the newer
one counts. Prints Markdown; with `--plots`, draws a PNG for each cell that is measured in several cases.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.figures import BLUE, GREEN, ORANGE, styled_pyplot
from bench.scorecard import CELLS, MODELS, Case

Line = dict[str, Any]
TITLES = {
    "decode": "decode, ms per step",
    "context": "decode at context 8,000, ms per step",
    "prefill": "prefill, ms to the first token",
    "mixed": "mixed workload, output tokens/s",
    "workload_a": "workload A, output tokens/s",
    "host": "plan, launch and commit of a decode step, us",
    "memory": "memory",
    "start": "process start to first token, s",
    "capture": "all graphs, s",
}
LEGEND = "In brackets: the floor's share of the number, and Playhead's lead over the best peer (below 1: it is behind)."
DRAWN = ("decode", "context", "prefill")


def read(lines: Iterable[str]) -> dict[tuple[str, str, str], Line]:
    """Measured numbers by model, cell and case. Lines about the device, skipped cases and profiles are left out."""
    found = (json.loads(line) for line in lines if line.strip())
    return {(one["model"], one["cell"], one["case"]): one for one in found if "measured" in one}


def shown(line: Line | None) -> str:
    """One number: `1.33 (35% of the floor, 1.54 x vLLM)`."""
    if line is None:
        return "-"
    notes = []
    if line["fraction_of_floor"] is not None:
        notes.append(f"{line['fraction_of_floor']:.0%}")
    if line["ratio"] is not None:
        notes.append(f"{line['ratio']:.2f} x {line['peer']}")
    return number(line["measured"]) + (f" ({', '.join(notes)})" if notes else "")


def number(value: float) -> str:
    """Three digits, or a whole number with its thousands apart."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def table(cell: str, found: dict[tuple[str, str, str], Line]) -> str:
    """A row for each model, a column for each case; nothing if none was measured."""
    cases = CELLS[cell]
    models = [name for name in MODELS if any((name, cell, case.name) in found for case in cases)]
    if not models:
        return ""
    rows = [[TITLES[cell], *(case.name for case in cases)], ["---"] * (1 + len(cases))]
    rows += [[MODELS[name].title, *(shown(found.get((name, cell, case.name))) for case in cases)] for name in models]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def report(found: dict[tuple[str, str, str], Line]) -> str:
    """All tables, one below the other."""
    return "\n\n".join([LEGEND, *filter(None, (table(cell, found) for cell in CELLS))])


def draw(pyplot: Any, cell: str, found: dict[tuple[str, str, str], Line]) -> Any:
    """Bars of Playhead and the best peer for each model and case, with the floor as a line; None if there are none."""
    cases = CELLS[cell]
    models = [name for name in MODELS if any((name, cell, case.name) in found for case in cases)]
    if not models:
        return None
    figure, axes = pyplot.subplots(1, len(models), figsize=(3.4 * len(models), 3.6), squeeze=False)
    for axis, name in zip(axes[0], models, strict=True):
        draw_model(axis, [(case, found.get((name, cell, case.name))) for case in cases])
        axis.set_title(MODELS[name].title)
    axes[0][0].set_ylabel(TITLES[cell])
    axes[0][0].legend()
    return figure


def draw_model(axis: Any, measured: list[tuple[Case, Line | None]]) -> None:
    for place, (_, line) in enumerate(measured):
        if line is None:
            continue
        for offset, key, color in ((-0.2, "measured", BLUE), (0.2, "best_peer", ORANGE)):
            if line[key] is not None:
                label = {"measured": "Playhead", "best_peer": "best peer"}[key] if place == 0 else None
                axis.bar(place + offset, line[key], 0.38, color=color, label=label)
        if line["floor"] is not None:
            label = "floor" if place == 0 else None
            axis.hlines(line["floor"], place - 0.42, place + 0.42, color=GREEN, linewidth=2, label=label)
    axis.set_xticks(range(len(measured)), [case.name.removeprefix("batch ") for case, _ in measured])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+", help="what bench.h200 --json wrote")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw PNGs there")
    args = parser.parse_args()
    found = read(line for path in args.results for line in path.read_text().splitlines())
    print(report(found))
    if args.plots is not None:
        args.plots.mkdir(parents=True, exist_ok=True)
        pyplot = styled_pyplot("agg")
        for cell in DRAWN:
            figure = draw(pyplot, cell, found)
            if figure is not None:
                figure.tight_layout()
                figure.savefig(args.plots / f"h200-{cell}.png", dpi=160)


if __name__ == "__main__":
    main()
