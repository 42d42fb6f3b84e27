"""The figures of the documentation: `python -m bench.figures`. Writes docs/figures/*.svg and the numbers drawn in them.

`memory` and `floor` are computed from the planner's code, `window` by running one request through the KV cache, and
`decode` is read from the table of docs/log. tests/unit/kv/test_figures.py computes the numbers again and compares them
with docs/figures/data.json, so that a figure cannot outlive the code it shows.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from bench.kv_models import models
from bench.scorecard import decode_floor_ms
from playhead.kv.cache import HybridKVCache
from playhead.kv.geometry import KVGeometry, KVGroup, num_pages_for, window_frontier
from playhead.kv.layout import lay_out
from playhead.kv.plan import KVLimits, plan_kv

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "docs" / "figures"
LOG = ROOT / "docs" / "log" / "2026-11-15-engine-h200.md"

PAGE_SIZE = 16
MIB, GIB = 2**20, 2**30
CONTEXTS = tuple(2**power for power in range(9, 18))
MEMORY_MODELS = ("Gemma-3-27B", "Gemma-3-4B", "gpt-oss-20b")

BATCHES = (1, 8, 32, 128)
PEERS = ("vLLM", "SGLang")
DECODE_MODELS = {"Gemma-3-1B": "gemma3-1b", "Gemma-3-4B": "gemma3-4b", "Llama-3.2-1B": "llama-1b"}
DECODE_CONTEXT = 256
"""The mean context of the workload: a prompt of 128 tokens, then 256 new ones."""

WINDOW_MODEL = "Gemma-3-4B"
PROMPT_TOKENS, CHUNK_TOKENS, LAST_TOKENS = 3072, 512, 6144

# Middle tones, without a background: they are readable on white and on black.
INK, GRID = "#7d8590", "#8b949e"
BLUE, ORANGE, PURPLE, GREEN = "#388bfd", "#db8a2b", "#a371f7", "#3fa455"


def held_pages(group: KVGroup, num_tokens: int) -> int:
    """Pages a decoding request of this length holds in a group: 1,024 tokens of a window of 512 hold 33 of 16."""
    first = 0 if group.window is None else window_frontier(num_tokens - 1, group.window, PAGE_SIZE)
    return num_pages_for(num_tokens, PAGE_SIZE) - first


def memory() -> dict[str, Any]:
    """Bytes of one decoding request by context: whole pages of every group, and every token in every layer."""
    drawn: dict[str, Any] = {"contexts": list(CONTEXTS), "models": {}}
    for name in MEMORY_MODELS:
        layout = lay_out(KVGeometry.of(models()[name], PAGE_SIZE))
        drawn["models"][name] = {
            "playhead_bytes": [
                sum(held_pages(one.group, context) * one.page_stride_bytes for one in layout.groups)
                for context in CONTEXTS
            ],
            "uniform_bytes": [
                sum(num_pages_for(context, PAGE_SIZE) * one.page_stride_bytes for one in layout.groups)
                for context in CONTEXTS
            ],
        }
    return drawn


def window() -> dict[str, Any]:
    """One request through the KV cache: its prompt in chunks, then token by token; bytes held after each step."""
    geometry = KVGeometry.of(models()[WINDOW_MODEL], PAGE_SIZE)
    limits = KVLimits(max_context_tokens=2 * LAST_TOKENS, max_running=1, chunk_tokens=CHUNK_TOKENS)
    plan = plan_kv(num_bytes=4 * GIB, geometry=geometry, limits=limits)
    cache = HybridKVCache(plan, prefix_caching=False)
    seq = cache.admit("request", [1] * PROMPT_TOKENS)
    tokens: list[int] = []
    held: dict[str, list[int]] = {one.group.name: [] for one in plan.layout.groups}
    while seq.num_tokens < LAST_TOKENS:
        cache.extend(seq, CHUNK_TOKENS if seq.num_tokens < PROMPT_TOKENS else 1)
        tokens.append(seq.num_tokens)
        for one, num_pages in zip(plan.layout.groups, cache.allocator.num_held, strict=True):
            held[one.group.name].append(num_pages * one.page_stride_bytes)
        cache.allocator.mapping.take_unpublished()
        cache.retire(cache.launch())
    shown = [index for index, count in enumerate(tokens) if count <= PROMPT_TOKENS or count % PAGE_SIZE == 1]
    per_page = sum(one.page_stride_bytes for one in plan.layout.groups)
    return {
        "model": WINDOW_MODEL,
        "tokens": [tokens[index] for index in shown],
        "held_bytes": {name: [counts[index] for index in shown] for name, counts in held.items()},
        "uniform_bytes": [num_pages_for(tokens[index], PAGE_SIZE) * per_page for index in shown],
    }


def decode() -> dict[str, Any]:
    """Milliseconds of a decode step by engine and batch, as logged, beside the time to read the step's bytes once."""
    drawn: dict[str, Any] = {"batches": list(BATCHES), "models": {}}
    for name, folder in DECODE_MODELS.items():
        drawn["models"][name] = logged_decode(name) | {"floor": floor_ms(folder)}
    return drawn


def logged_decode(name: str) -> dict[str, list[float]]:
    """The rows of the log's table: `| NAME: Playhead | **1.35** | ...`, then `| vLLM / SGLang | 2.04 / 2.72 | ...`."""
    table = LOG.read_text().split("| decode, ms per step")[1]
    ours, peers = (line.split("|")[2:-1] for line in table[table.index(f"| {name}: Playhead") :].splitlines()[:2])
    rows = {"Playhead": [float(cell.strip(" *")) for cell in ours]}
    for index, peer in enumerate(PEERS):
        rows[peer] = [float(re.split(r"\s*/\s*", cell.strip())[index]) for cell in peers]
    return rows


def floor_ms(folder: str) -> list[float]:
    """Weights once and every request's live keys and values once, at the speed of the memory."""
    return [round(decode_floor_ms(folder, batch, DECODE_CONTEXT), 3) for batch in BATCHES]


def draw_memory(pyplot: Any, drawn: dict[str, Any]) -> Any:
    figure, axes = pyplot.subplots(1, len(MEMORY_MODELS), figsize=(10, 3.9), sharey=True)
    for axis, (name, values) in zip(axes, drawn["models"].items(), strict=True):
        uniform, ours = values["uniform_bytes"], values["playhead_bytes"]
        axis.plot(drawn["contexts"], [x / GIB for x in uniform], "--", color=ORANGE, label="uniform paging")
        axis.plot(drawn["contexts"], [x / GIB for x in ours], "o-", markersize=3, color=BLUE, label="Playhead")
        axis.set(xscale="log", yscale="log", xlabel="context, tokens")
        axis.set_xticks([512, 4096, 32768, 131072], ["512", "4k", "32k", "128k"])
        axis.set_yticks([0.01, 0.1, 1, 10], ["0.01", "0.1", "1", "10"])
        axis.minorticks_off()
        times = uniform[-1] / ours[-1]
        axis.set_title(f"{name}\n{uniform[-1] / GIB:.1f} GiB -> {ours[-1] / GIB:.1f} GiB at 128k ({times:.1f}x)")
    axes[0].set_ylabel("KV memory of one request, GiB")
    axes[0].legend()
    figure.suptitle("Window layers give back what no token can see any more (bfloat16, pages of 16 tokens)")
    return figure


def draw_window(pyplot: Any, drawn: dict[str, Any]) -> Any:
    figure, axis = pyplot.subplots(figsize=(9, 4.2))
    (full, full_bytes), (name, window_bytes) = drawn["held_bytes"].items()
    shares = [[x / MIB for x in full_bytes], [x / MIB for x in window_bytes]]
    width = name.removeprefix("window")
    labels = [f"{full} layers: every token", f"window layers: the last {width}, and the chunk in flight"]
    axis.stackplot(drawn["tokens"], *shares, labels=labels, colors=[PURPLE, BLUE], alpha=0.75, step="post")
    uniform = [x / MIB for x in drawn["uniform_bytes"]]
    axis.plot(drawn["tokens"], uniform, "--", color=ORANGE, label="uniform paging: every token in every layer")
    axis.axvline(PROMPT_TOKENS, color=INK, linewidth=0.8, linestyle=":")
    axis.annotate("prompt, in chunks of 512", (PROMPT_TOKENS - 60, uniform[-1] * 0.56), ha="right")
    axis.annotate("one token a step", (PROMPT_TOKENS + 60, uniform[-1] * 0.32))
    axis.set(xlabel="tokens of the request", ylabel="KV memory held, MiB", xlim=(drawn["tokens"][0], LAST_TOKENS))
    axis.legend(loc="upper left")
    axis.set_title(f"A window sliding: one request of {drawn['model']}")
    return figure


def draw_decode(pyplot: Any, drawn: dict[str, Any]) -> Any:
    figure, axes = pyplot.subplots(1, len(drawn["models"]), figsize=(10, 3.9))
    colors = {"Playhead": BLUE, "vLLM": ORANGE, "SGLang": PURPLE}
    places = range(len(BATCHES))
    for axis, (name, rows) in zip(axes, drawn["models"].items(), strict=True):
        for index, (engine, color) in enumerate(colors.items()):
            axis.bar([place + 0.27 * (index - 1) for place in places], rows[engine], 0.25, color=color, label=engine)
        axis.hlines(
            rows["floor"],
            [place - 0.42 for place in places],
            [place + 0.42 for place in places],
            color=GREEN,
            linewidth=2,
            label="floor: bytes / 4.3 TB/s",
        )
        axis.set_xticks(list(places), [str(batch) for batch in BATCHES])
        axis.set(title=name, xlabel="requests in the batch")
    axes[0].set_ylabel("one decode step, ms (less is better)")
    axes[0].legend()
    figure.suptitle("Decode on one H200, bfloat16, prompts of 128 tokens and 256 new ones: vLLM 0.26.0, SGLang 0.5.17")
    return figure


def styled_pyplot(backend: str = "svg") -> Any:
    """matplotlib in tones that are readable on white and on black, without a background."""
    try:
        import matplotlib
        from matplotlib import pyplot
    except ImportError as error:
        raise SystemExit("bench.figures: matplotlib is not installed; pip install 'playhead[bench]'") from error
    matplotlib.use(backend)
    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "axes.titlecolor")
    style = dict.fromkeys(inked, INK) | {
        "font.size": 9,
        "axes.titlesize": 9,
        "figure.titlesize": 10,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": GRID,
        "grid.alpha": 0.25,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.framealpha": 0,
        "legend.fontsize": 8,
        "savefig.transparent": True,
        "svg.fonttype": "none",  # text stays text
        "svg.hashsalt": "playhead",  # the same numbers give the same file
        "font.family": ["DejaVu Sans", "sans-serif"],
    }
    matplotlib.rcParams.update(style)
    return pyplot


def numbers() -> dict[str, Any]:
    """Everything that is drawn."""
    return {"memory": memory(), "window": window(), "decode": decode()}


def main() -> None:
    drawn, pyplot = numbers(), styled_pyplot()
    for name, draw in (("memory", draw_memory), ("window", draw_window), ("decode", draw_decode)):
        figure = draw(pyplot, drawn[name])
        figure.tight_layout()
        figure.savefig(FIGURES / f"{name}.svg", metadata={"Date": None})
        print(f"docs/figures/{name}.svg")
    (FIGURES / "data.json").write_text(json.dumps(drawn) + "\n")


if __name__ == "__main__":
    main()
