"""The cells of the scorecard: what is measured, in which unit, and against which floor and which peers.

A cell is one kind of measurement (`decode`), a case one number in it (`batch 8`). Floors of decode steps are computed
from the model's shapes; all other floors and the peers' figures are in `peers.json`, with their date and source.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from playhead.engine.memory import num_weight_bytes
from playhead.models.load import describe_model
from playhead.step.forward import kv_geometry

BENCH = Path(__file__).resolve().parent
BYTES_PER_SECOND = 4.3e12
"""What an H200 reads, measured: the floor of a decode step is its bytes over this."""
PAGE_SIZE = 16
FLOOR_CONTEXT = {"decode": 1024, "context": 8192}
"""The context whose keys and values a step reads at the floor, by cell. The workloads' own are shorter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model of the scorecard. `relative_cost` is what its steps take compared to Gemma-3-1B's."""

    title: str
    folder: str
    relative_cost: float = 1.0

    @property
    def path(self) -> Path:
        return BENCH / "models" / self.folder


MODELS = {
    "gemma3-1b": Model(title="Gemma-3-1B", folder="gemma3-1b"),
    "gemma3-4b": Model(title="Gemma-3-4B", folder="gemma3-4b", relative_cost=3.0),
    "llama3.2-1b": Model(title="Llama-3.2-1B", folder="llama-1b"),
    "qwen3-0.6b": Model(title="Qwen3-0.6B", folder="qwen3-0.6b"),
}
"""By the name that the command line takes, the most important first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One number of a cell: `batch` requests with prompts of `prompt_tokens`, where the cell has such.

    `seconds` is what measuring it takes on an H200 with Gemma-3-1B, captures included: what a budget is compared with.
    """

    cell: str
    name: str
    unit: str
    seconds: float
    batch: int = 1
    prompt_tokens: int = 0

    @property
    def more_is_better(self) -> bool:
        return self.unit in ("tokens/s", "tokens")


def batches(cell: str, prompt_tokens: int, seconds: dict[int, float]) -> tuple[Case, ...]:
    return tuple(
        Case(cell=cell, name=f"batch {n}", unit="ms", seconds=s, batch=n, prompt_tokens=prompt_tokens)
        for n, s in seconds.items()
    )


def prompts_of(batch: int, prompt_tokens: int) -> Case:
    name = f"{batch} x {prompt_tokens}"
    return Case(cell="prefill", name=name, unit="ms", seconds=1, batch=batch, prompt_tokens=prompt_tokens)


CELLS: dict[str, tuple[Case, ...]] = {
    "decode": batches("decode", 128, {1: 3, 8: 3, 32: 3, 128: 4}),
    "prefill": (prompts_of(1, 128), prompts_of(1, 512), prompts_of(1, 2048), prompts_of(16, 512)),
    "mixed": (Case(cell="mixed", name="256 requests", unit="tokens/s", seconds=20, batch=256),),
    "workload_a": tuple(
        Case(cell="workload_a", name=name, unit="tokens/s", seconds=22, batch=256)
        for name in ("greedy", "drawn", "filtered")
    ),
    "host": tuple(
        Case(cell="host", name=f"{kind} batch of {n}", unit="us", seconds=4, batch=n)
        for n in (128, 256)
        for kind in ("steady", "changed")
    ),
    "memory": (
        Case(cell="memory", name="KV tokens at 8192", unit="tokens", seconds=0),
        Case(cell="memory", name="left after close", unit="GiB", seconds=1),
    ),
    "context": batches("context", 8000, {1: 4, 32: 8, 128: 15}),
    "start": tuple(Case(cell="start", name=name, unit="s", seconds=20) for name in ("cold", "warm")),
    "capture": tuple(Case(cell="capture", name=name, unit="s", seconds=50) for name in ("cold", "warm")),
}
"""Every cell with its cases, in the order in which they are measured."""


@cache
def record() -> dict[str, Any]:
    """`peers.json`."""
    return dict(json.loads((BENCH / "peers.json").read_text()))


@cache
def step_bytes(folder: str, context_tokens: int) -> tuple[int, int]:
    """What a decode step must read: the weights once, and the live keys and values of each request of this length."""
    spec = describe_model(str(BENCH / "models" / folder), config_only=True).spec
    geometry = kv_geometry(spec, page_size=PAGE_SIZE, dtype=torch.bfloat16)
    return num_weight_bytes(spec, torch.bfloat16), geometry.bytes_per_request(context_tokens)


def decode_floor_ms(folder: str, batch: int, context_tokens: int) -> float:
    """The bytes of a decode step at the speed of the memory: Gemma-3-1B at batch 8 and context 1,024 has 0.494 ms."""
    weight_bytes, kv_bytes = step_bytes(folder, context_tokens)
    return (weight_bytes + batch * kv_bytes) / BYTES_PER_SECOND * 1e3


def floor_of(model: str, case: Case) -> float | None:
    """The best that physics allows, in the case's unit; None where nobody has worked it out."""
    if case.cell in FLOOR_CONTEXT:
        return decode_floor_ms(MODELS[model].folder, case.batch, FLOOR_CONTEXT[case.cell])
    known = record()["floors"].get(model, {}).get(case.cell)
    found: float | None = known.get(case.name) if isinstance(known, dict) else known
    return found


def best_peer(model: str, case: Case) -> tuple[str, float] | None:
    """The peer with the best figure, and the figure."""
    known = record()["peers"].get(model, {}).get(case.cell, {}).get(case.name)
    if not known:
        return None
    best = max(known, key=known.__getitem__) if case.more_is_better else min(known, key=known.__getitem__)
    return best, known[best]


def line(model: str, case: Case, measured: float, **facts: Any) -> dict[str, Any]:
    """One number beside its floor and its best peer. A ratio above 1 is ahead of the peer, whatever the unit.

    1.34 ms where the floor is 0.469 ms and vLLM has 2.04 ms: a fraction of 0.35 of the floor, and a ratio of 1.52.
    """
    floor, peer = facts.pop("floor", floor_of(model, case)), best_peer(model, case)
    return {
        "model": model,
        "cell": case.cell,
        "case": case.name,
        "unit": case.unit,
        "measured": rounded(measured),
        "floor": rounded(floor),
        "fraction_of_floor": rounded(advantage(case, measured, floor)),
        "peer": peer[0] if peer else None,
        "best_peer": rounded(peer[1]) if peer else None,
        "ratio": rounded(advantage(case, measured, peer[1] if peer else None)),
        **{name: rounded(value) if isinstance(value, float) else value for name, value in facts.items()},
    }


def advantage(case: Case, measured: float, other: float | None) -> float | None:
    """How many times as good as the other number the measured one is."""
    if not other or not measured:
        return None
    return measured / other if case.more_is_better else other / measured


def rounded(value: float | None) -> float | None:
    """Four digits, and whole numbers from a thousand on."""
    return None if value is None else round(value) if abs(value) >= 1000 else float(f"{value:.4g}")
