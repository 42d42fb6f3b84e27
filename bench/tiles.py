"""Tiles, measured in whole decode steps: `python -m bench.tiles gemma3-1b --batches 1,8 --maps gate-up,o`.

A product by itself is timed by `bench.projections`. In a step its weights come while other kernels run, and its
programs take room from theirs: the fastest tiles by themselves are often not the fastest there. Here a step is captured
anew for every variant of the tiles that `projection_tiles.py` chooses for one map, of the splits that `keys_per_split`
chooses for attention (the map `keys`), and of the tiles of its programs (`programs`). `--wide` tries every cut that
gives about a program for each multiprocessor too, also where the BLAS library makes the product.

Variants are compiled before the first is measured, many at a time. Prompts have 128 tokens and get 256 more, as in the
scorecard; `--prompt-tokens` makes them longer, `--new-tokens` gives fewer. The figure is the mean of the steps without
prompts on the device, the lower of two rounds; it varies by 5 us. `thirds` has medians of the first, middle and last
third of the steps: what grows with the length is attention.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources

from bench import workload
from bench.measure import emit
from bench.measured_llm import CHUNK_TOKENS, MeasuredLLM
from bench.projections import Model, rule_for
from bench.scorecard import MODELS
from bench.tile_variants import Shape, program_variants, variants, wide_cuts
from playhead.kernels.rehearsal import Rehearsal
from playhead.kernels.splits import MIN_KEYS_PER_SPLIT, DecodeShape, KeysPerSplit, keys_per_split, parts_left
from playhead.kernels.triton import decode, projection
from playhead.kernels.triton.compile_ahead import compiling_ahead
from playhead.kernels.triton.decode_tiles import DecodeTiles, decode_tiles
from playhead.kernels.triton.projection_tiles import (
    FittedTiles,
    RingTiles,
    Tiles,
    gated_tiles,
    num_shares,
    split_tiles,
    tiles_for,
)
from playhead.models.load import describe_model
from playhead.models.spec import ModelSpec
from playhead.step.compile_ahead import rehearse
from playhead.step.worker import Worker

FEWEST = (4, 8, 12, 16)  # splits that are tried for requests of up to a thousand keys
MAX_MODEL_LEN = 4096
Cut = Callable[[], AbstractContextManager[Any]]
"""In what it gives, steps are captured by other rules."""


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


def cut_as(tiles: Tiles, num_rows: int, shape: Shape) -> AbstractContextManager[Any]:
    """In here products of so many rows with matrices of this shape are cut so. Tiles that leave parts are for those
    whose reader adds these up; behind a model's last layer there is none.
    """

    def instead_of(rule: Callable[..., Tiles | None]) -> Callable[..., Tiles | None]:
        def choose(x_TI: Tensor, weight_OI: Tensor, *bias: Tensor | None) -> Tiles | None:
            is_meant = len(x_TI) == num_rows and tuple(weight_OI.shape) == shape
            return tiles if is_meant and all(one is None for one in bias) else rule(x_TI, weight_OI, *bias)

        return choose

    if isinstance(tiles, RingTiles | FittedTiles):
        return patch.multiple(projection, gated_tiles=instead_of(gated_tiles))
    is_whole = num_shares(tiles) == 1
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


def programs_as(tiles: DecodeTiles) -> AbstractContextManager[Any]:
    """In here attention has these programs."""
    return patch.object(decode, "decode_tiles", lambda *_, **__: tiles)


class StepUs(NamedTuple):
    """Microseconds of a decode step on the device."""

    mean: float
    thirds: tuple[float, float, float]

    @classmethod
    def of(cls, steps: Sequence[float]) -> StepUs:
        if len(steps) < 3:
            raise ValueError(f"found {len(steps)} steps without prompts; wanted 3. More new tokens give more.")
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

    def __init__(self, model: str, prompt_tokens: int = workload.DECODE_PROMPT, new_tokens: int | None = None) -> None:
        self._llm, self._prompt_tokens = MeasuredLLM(MODELS[model].path, MAX_MODEL_LEN), prompt_tokens
        self._new_tokens = new_tokens or workload.DECODE_NEW

    def __enter__(self) -> DecodeSteps:
        return self

    def __exit__(self, *_: object) -> None:
        self._llm.close()

    @property
    def worker(self) -> Worker:
        return self._llm.llm.engine.worker

    def compile(self, batch: int, cuts: Sequence[Cut]) -> None:
        """Compile what steps of so many requests will launch, where kernels are compiled at all."""
        if self.worker.device.type != "cuda":
            return
        with compiling_ahead(), self.worker.model.decoder.few_layers_of_each_kind():
            for cut in cuts:
                with cut():
                    rehearse(self.worker.decode, batch, Rehearsal(self.worker.device))

    def us(self, batch: int) -> StepUs:
        lens, timeline = [self._prompt_tokens] * batch, self._llm.llm.engine.timeline
        num_prompt_steps = -(-sum(lens) // CHUNK_TOKENS)  # the first request is there until the last one decodes
        self._llm.seconds(workload.prompts(f"warm{batch}", lens), [num_prompt_steps + 3] * batch)
        capture_again(self.worker, batch)
        found = []
        for i in range(2):
            self._llm.seconds(workload.prompts(f"t{batch}.{i}", lens), [self._new_tokens] * batch)
            newest = timeline.newest(self._new_tokens)
            found.append(StepUs.of([step.device_us for step in newest if step.raw == step.num_requests == batch]))
        return min(found)


def cuts_of(model: str, batch: int, name: str, *, is_wide: bool) -> Iterator[tuple[dict[str, Any], Cut]]:
    """What is tried for one map: what it is like, and where it holds."""
    if name == "keys":
        for few in FEWEST if counts_splits(model, batch) else ():
            yield {"few": few}, partial(split_as, few)
    elif name == "programs":
        attention = spec_of(model).layers[0].attention
        dims, num_programs = (attention.k_head_dim, attention.v_head_dim), batch * attention.num_kv_heads
        chosen_programs = decode_tiles(*dims, num_programs=num_programs)
        for programs in program_variants(chosen_programs, 2 * sum(dims)):
            yield asdict(programs), partial(programs_as, programs)
    else:
        shape = shapes_of(model)[name]
        tiles = chosen(name, batch, shape)
        found = [] if tiles is None else variants(tiles, shape[1])
        found += [other for other in wide_cuts(name, batch, shape) if other != tiles] if is_wide else []
        for other in dict.fromkeys(found):
            values = asdict(other)
            is_alike = type(other) is type(tiles)
            changed = {key: value for key, value in values.items() if not is_alike or value != getattr(tiles, key)}
            yield changed, partial(cut_as, other, batch, shape)


def measure(steps: DecodeSteps, model: str, batch: int, name: str, *, is_wide: bool = False) -> None:
    """A line for each variant of one map."""
    tried = list(cuts_of(model, batch, name, is_wide=is_wide))
    steps.compile(batch, [cut for _, cut in tried])
    for what, cut in tried:
        with cut():
            try:
                report(steps, model, batch, name, **what)
            except OutOfResources as error:
                emit("tiles", model=model, map=name, rows=batch, does_not_fit=str(error), **what)


def report(steps: DecodeSteps, model: str, batch: int, name: str, **what: Any) -> None:
    found = steps.us(batch)
    emit("tiles", model=model, map=name, rows=batch, us=found.mean, thirds=found.thirds, **what)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--batches", default="1,8,32,128")
    parser.add_argument("--maps", default="gate-up,down,qkv,o,keys,programs", help="empty: the rules alone")
    parser.add_argument("--wide", action="store_true", help="every cut that fills the device, not neighbours alone")
    parser.add_argument("--prompt-tokens", type=int, default=workload.DECODE_PROMPT)
    parser.add_argument("--new-tokens", type=int, default=workload.DECODE_NEW)
    arguments = parser.parse_args()
    model = arguments.model
    with DecodeSteps(model, arguments.prompt_tokens, arguments.new_tokens) as steps:
        for batch in map(int, arguments.batches.split(",")):
            tiles = {name: str(chosen(name, batch, shape)) for name, shape in shapes_of(model).items()}
            report(steps, model, batch, "as the rules say", **tiles)
            for name in filter(None, arguments.maps.split(",")):
                measure(steps, model, batch, name, is_wide=arguments.wide)


if __name__ == "__main__":
    main()
