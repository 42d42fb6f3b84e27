"""Plots of simulated fleets, in tones that are readable on white and on black."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.figures import BLUE, GREEN, ORANGE, PURPLE, styled_pyplot

COLORS = {"prefix": BLUE, "round-robin": ORANGE, "least-loaded": PURPLE}


def draw_sweep(runs: Sequence[dict[str, Any]]) -> Any:
    """First tokens and cached prompts by rate, one line for each router."""
    pyplot = styled_pyplot("agg")
    figure, axes = pyplot.subplots(1, 3, figsize=(10.2, 3.6))
    for router in dict.fromkeys(run["router"] for run in runs):
        mine = [run for run in runs if run["router"] == router]
        rates = [run["rate_per_replica"] for run in mine]
        style = {"color": COLORS[router], "marker": "o", "markersize": 3, "label": router}
        axes[0].plot(rates, [run["first_token_ms"]["p50"] for run in mine], **style)
        axes[1].plot(rates, [run["first_token_ms"]["p95"] for run in mine], **style)
        axes[2].plot(rates, [100 * run["hit_rate"] for run in mine], **style)
    best = [100 * run["best_hit_rate"] for run in mine]
    (shared,) = axes[2].plot(rates, best, "--", color=GREEN, label="all that is shared")
    for axis, title in zip(
        axes, ("first token, p50, ms", "first token, p95, ms", "prompt tokens cached, %"), strict=True
    ):
        axis.set(title=title, xlabel="requests/s for each replica")
        axis.set_ylim(0)
    axes[2].set_ylim(0, 100)
    axes[0].legend()
    axes[2].legend(handles=[shared])
    figure.suptitle(f"{runs[0]['replicas']:,} simulated replicas, {runs[0]['requests']:,} requests a point")
    return figure


def draw_fleet(run: dict[str, Any]) -> Any:
    """Requests under way and replicas over time."""
    pyplot = styled_pyplot("agg")
    figure, axis = pyplot.subplots(figsize=(9, 3.6))
    seconds, replicas, requests = zip(*run["looks"], strict=True)
    axis.plot(seconds, requests, color=ORANGE, linewidth=0.9, label="requests under way")
    axis.set(xlabel="seconds", ylabel="requests")
    other = axis.twinx()
    other.plot(seconds, replicas, color=BLUE, label="replicas paid for")
    other.set_ylabel("replicas")
    other.set_ylim(0)
    other.yaxis.get_major_locator().set_params(integer=True)
    other.grid(visible=False)
    lines = [*axis.get_lines(), *other.get_lines()]
    axis.legend(lines, [line.get_label() for line in lines])
    p95 = run["first_token_ms"]["p95"]
    figure.suptitle(f"The policy under a load that swings: {run['requests']:,} requests, first token p95 {p95:,.0f} ms")
    return figure


def save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    print(path)
