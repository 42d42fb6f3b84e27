"""Tiles of products, measured in whole decode steps: `python -m bench.tiles gemma3-1b --batches 1,8 --maps gate-up,o`.

A product by itself is timed by `bench.projections`. In a step its weights come while other kernels run, and its
programs take room from theirs: the fastest tiles by themselves are often not the fastest there. Here a step is captured
anew for every variant of the tiles that `projection_tiles.py` chooses for one map, and of the splits that
`keys_per_split` chooses for attention (the map `keys`). Prompts have 128 tokens and get 256 more, as in the scorecard;
`--prompt-tokens` makes them longer. The figure is the mean of these steps on the device, the lower of two rounds; it
varies by 5 us. `thirds` has medians of the first, middle and last third of the steps: what grows with the length is
attention.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources

from bench import workload
from bench.measure import emit
from bench.measured_llm import CHUNK_TOKENS, MeasuredLLM
from bench.projections import Model, neighbours, rule_for
from bench.scorecard import MODELS
from playhead.kernels.splits import MIN_KEYS_PER_SPLIT, DecodeShape, KeysPerSplit, keys_per_split, parts_left
from playhead.kernels.triton import decode, projection
from playhead.kernels.triton.projection_tiles import (
    RING_INPUTS,
    HeldTiles,
    RingTiles,
    RowTiles,
    StreamedTiles,
    Tiles,
    gated_tiles,
    split_tiles,
    tiles_for,
)
from playhead.models.load import describe_model
from playhead.models.spec import ModelSpec
from playhead.step.worker import Worker

FEWEST = (4, 8, 12, 16)  # splits that are tried for requests of up to a thousand keys
MAX_MODEL_LEN = 4096
Shape = tuple[int, int]


def spec_of(model: str) -> ModelSpec:
    return describe_model(str(MODELS[model].path), config_only=True).spec


def shapes_of(model: str) -> dict[str, Shape]:
    """Outputs and inputs of each map of a layer."""
    spec = spec_of(model)
    attention, mlp = spec.layers[0].attention, spec.layers[0].mlp
    queries, keys = attention.num_heads * attention.k_head_dim, attention.num_kv_heads * attention.k_head_dim
    return Model(
        hidden=spec.hidden_size,
        qkv=queries + keys + attention.num_kv_heads * attention.v_head_dim,
        attended=attention.num_heads * attention.v_head_dim,
        intermediate=mlp.size,
    ).shapes


def chosen(name: str, num_rows: int, shape: Shape) -> Tiles | None:
    """What the rules say for a map."""
    num_outputs, num_inputs = shape
    x_TI = torch.empty((num_rows, num_inputs), dtype=torch.bfloat16, device="meta")
    weight_OI = torch.empty((num_outputs, num_inputs), dtype=torch.bfloat16, device="meta")
    return rule_for(name, x_TI, weight_OI) or tiles_for(x_TI, weight_OI)


def variants(tiles: Tiles, num_inputs: int) -> list[Tiles]:
    """Other tiles of the same kind that cover all inputs, each once."""
    found: list[Tiles] = list(neighbours(tiles))
    if isinstance(tiles, StreamedTiles):
        holding = ((0, 3), (128, 2), (256, 3), (512, 3), (512, 2))
        found += [replace(tiles, held=held, num_stages=num_stages) for held, num_stages in holding]
        if tiles.num_splits > 1:
            counts = (tiles.num_splits - 1, tiles.num_splits + 1, 2 * tiles.num_splits)
            found += [replace(tiles, num_splits=count) for count in counts if count > 1]
    return [other for other in dict.fromkeys(found) if other != tiles and covers(other, num_inputs)]


def covers(tiles: Tiles, num_inputs: int) -> bool:
    """Whether all inputs are some program's, and no others. Streamed ones go on to the last."""
    if isinstance(tiles, RingTiles):
        return (tiles.places + tiles.holds) * RING_INPUTS <= num_inputs
    if isinstance(tiles, HeldTiles):
        return tiles.num_splits * tiles.parts * (tiles.block_k + tiles.rest) >= num_inputs
    return True


def cut_as(tiles: Tiles, num_rows: int, shape: Shape) -> AbstractContextManager[Any]:
    """In here products of so many rows with matrices of this shape are cut so. Tiles that leave parts are for those
    whose reader adds these up; behind a model's last layer there is none.
    """

    def instead_of(rule: Callable[..., Tiles | None]) -> Callable[..., Tiles | None]:
        def choose(x_TI: Tensor, weight_OI: Tensor, *bias: Tensor | None) -> Tiles | None:
            found = rule(x_TI, weight_OI, *bias)
            is_meant = found is not None and len(x_TI) == num_rows and tuple(weight_OI.shape) == shape
            return tiles if is_meant and all(one is None for one in bias) else found

        return choose

    if isinstance(tiles, RingTiles):
        return patch.multiple(projection, gated_tiles=instead_of(gated_tiles))
    is_whole = isinstance(tiles, RowTiles) or tiles.num_splits == 1
    whole_rule = instead_of(tiles_for) if is_whole else tiles_for
    gated_rule = instead_of(gated_tiles) if is_whole else gated_tiles
    return patch.multiple(projection, tiles_for=whole_rule, gated_tiles=gated_rule, split_tiles=instead_of(split_tiles))


def counts_splits(model: str, batch: int) -> bool:
    """Whether the rule has a number of splits for a model: it has none for small parts, as Llama's, nor for one request
    whose parts are left.
    """
    attention = spec_of(model).layers[0].attention
    shape = DecodeShape(
        num_heads=attention.num_heads,
        num_kv_heads=attention.num_kv_heads,
        v_head_dim=attention.v_head_dim,
        max_keys=MAX_MODEL_LEN,
    )
    keys = keys_per_split(batch * shape.num_kv_heads, MIN_KEYS_PER_SPLIT, shape.part_elements)
    return keys.most > 1 and not parts_left(shape, batch)


def split_as(few: int) -> AbstractContextManager[Any]:
    """In here attention cuts requests into so many splits before these grow, where the rule has such a number."""

    def rule(*call: Any, **named: Any) -> KeysPerSplit:
        keys = keys_per_split(*call, **named)
        return keys._replace(few=few) if keys.most > 1 else keys

    return patch.object(decode, "keys_per_split", rule)


class StepUs(NamedTuple):
    """Microseconds of a decode step on the device."""

    mean: float
    thirds: tuple[float, float, float]

    @classmethod
    def of(cls, steps: Sequence[float]) -> StepUs:
        third = len(steps) // 3
        parts = (steps[:third], steps[third : 2 * third], steps[2 * third :])
        first, middle, last = (round(statistics.median(part), 1) for part in parts)
        return cls(mean=statistics.fmean(steps), thirds=(first, middle, last))


def capture_again(worker: Worker, batch: int) -> None:
    """The decode step of so many requests by the rules that hold now."""
    runners = [runner for runner in worker.decoders.values() if batch in runner.captured]
    if not runners:
        known = sorted({size for runner in worker.decoders.values() for size in runner.captured})
        raise ValueError(f"batch: found {batch}; wanted a size that steps are captured for, as {known}")
    for runner in runners:
        runner.capture_bucket(batch)


class DecodeSteps:
    """Decode steps of one model, by the rules that hold when they are asked for."""

    def __init__(self, model: str, prompt_tokens: int = workload.DECODE_PROMPT) -> None:
        self._llm, self._prompt_tokens = MeasuredLLM(MODELS[model].path, MAX_MODEL_LEN), prompt_tokens

    def __enter__(self) -> DecodeSteps:
        return self

    def __exit__(self, *_: object) -> None:
        self._llm.close()

    @property
    def worker(self) -> Worker:
        return self._llm.llm.engine.worker

    def us(self, batch: int) -> StepUs:
        lens, timeline = [self._prompt_tokens] * batch, self._llm.llm.engine.timeline
        num_prompt_steps = -(-sum(lens) // CHUNK_TOKENS)  # the first request is there until the last one decodes
        self._llm.seconds(workload.prompts(f"warm{batch}", lens), [num_prompt_steps + 3] * batch)
        capture_again(self.worker, batch)
        found = []
        for i in range(2):
            self._llm.seconds(workload.prompts(f"t{batch}.{i}", lens), [workload.DECODE_NEW] * batch)
            found.append(StepUs.of([step.device_us for step in timeline.newest(workload.DECODE_NEW - 2)]))
        return min(found)


def measure(steps: DecodeSteps, model: str, batch: int, name: str) -> None:
    """A line for each variant of one map."""
    if name == "keys":
        for few in FEWEST if counts_splits(model, batch) else ():
            with split_as(few):
                report(steps, model, batch, name, few=few)
        return
    shape = shapes_of(model)[name]
    tiles = chosen(name, batch, shape)
    for other in () if tiles is None else variants(tiles, shape[1]):
        changed = {key: value for key, value in asdict(other).items() if value != getattr(tiles, key)}
        with cut_as(other, batch, shape):
            try:
                report(steps, model, batch, name, **changed)
            except OutOfResources as error:
                emit("tiles", model=model, map=name, rows=batch, does_not_fit=str(error), **changed)


def report(steps: DecodeSteps, model: str, batch: int, name: str, **what: Any) -> None:
    found = steps.us(batch)
    emit("tiles", model=model, map=name, rows=batch, us=found.mean, thirds=found.thirds, **what)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--batches", default="1,8,32,128")
    parser.add_argument("--maps", default="gate-up,down,qkv,o,keys", help="empty: the rules alone")
    parser.add_argument("--prompt-tokens", type=int, default=workload.DECODE_PROMPT)
    arguments = parser.parse_args()
    model = arguments.model
    with DecodeSteps(model, arguments.prompt_tokens) as steps:
        for batch in map(int, arguments.batches.split(",")):
            tiles = {name: str(chosen(name, batch, shape)) for name, shape in shapes_of(model).items()}
            report(steps, model, batch, "as the rules say", **tiles)
            for name in filter(None, arguments.maps.split(",")):
                measure(steps, model, batch, name)


if __name__ == "__main__":
    main()
