"""What a step takes, from what it has to do. Numbers only: no torch, no engine. `fit.py` finds the coefficients.

    step = a W/BW + b KV/BW + layers t_l + rows (c FLOPs + t_r)                      a decode step
         + d max(0, prompt FLOPs - W/BW) + layers t_p + prompt tokens t_t            and a prompt's chunk beside it

W are the bytes of all weights, KV the live keys and values of the rows that decode, BW what the memory reads. A chunk's
products hide behind the reading of the weights until they take longer than it, so only what is above that costs.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from playhead.errors import ConfigError
from playhead.kv.geometry import KVGeometry
from playhead.layers.spec import MoeSpec
from playhead.models.spec import ModelSpec

Floats = npt.NDArray[np.float64]

ALL_REDUCES_PER_LAYER = 2
ALL_REDUCE_US = 12.0
"""One all-reduce of a small tensor between GPUs of one machine. Assumed, not measured: one GPU is all we had."""
LINK_BYTES_PER_S = 300e9
"""What an all-reduce moves. Assumed as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A device in three measured numbers: its memory, what it reads, and what its matrix units do in bfloat16."""

    name: str
    memory_bytes: int
    bytes_per_s: float
    flops_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """All layers of one KV group: what a token leaves there, and what a query pays for each key it sees."""

    window: int | None
    num_kv_heads: int
    kv_bytes_per_token: int
    flops_per_key: int

    def live_tokens(self, context_tokens: int) -> int:
        return context_tokens if self.window is None else min(self.window, context_tokens)

    def num_pairs(self, first: int, end: int) -> int:
        """Keys that the queries at positions [first, end) see, themselves included: 1 + 2 + 3 for the first three.

        With window 2 the first three see 1 + 2 + 2.
        """
        if self.window is None:
            return sums_to(end) - sums_to(first)
        edge = min(max(first, self.window), end)  # from here on a query sees its whole window
        return max(0, sums_to(edge) - sums_to(first)) + (end - edge) * self.window


def sums_to(count: int) -> int:
    """1 + 2 + ... + count."""
    return count * (count + 1) // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A model as costs see it, or one rank's part of it. FLOPs are of one token, the head's of one sampled row."""

    weight_bytes: int
    num_layers: int
    layer_flops: int
    head_flops: int
    hidden_bytes: int
    attention: tuple[AttentionShape, ...]

    def live_bytes(self, context_tokens: int) -> int:
        """Keys and values that the next query of such a context reads, and that its request holds."""
        return sum(one.kv_bytes_per_token * one.live_tokens(context_tokens) for one in self.attention)

    def prompt_flops(self, first: int, end: int) -> int:
        """Of the chunk [first, end) of a prompt, without the head."""
        pairs = sum(one.flops_per_key * one.num_pairs(first, end) for one in self.attention)
        return (end - first) * self.layer_flops + pairs

    def split(self, num_ranks: int) -> ModelShape:
        """One rank's part. A KV head is on every rank that needs it: four ranks share two heads' bytes in halves."""
        if num_ranks == 1:
            return self
        groups = tuple(
            replace(
                one,
                kv_bytes_per_token=-(-one.kv_bytes_per_token // min(num_ranks, one.num_kv_heads)),
                num_kv_heads=max(1, one.num_kv_heads // num_ranks),
                flops_per_key=-(-one.flops_per_key // num_ranks),
            )
            for one in self.attention
        )
        return replace(
            self,
            weight_bytes=-(-self.weight_bytes // num_ranks),
            layer_flops=-(-self.layer_flops // num_ranks),
            head_flops=-(-self.head_flops // num_ranks),
            attention=groups,
        )


def shape_of(spec: ModelSpec, geometry: KVGeometry, weight_bytes: int) -> ModelShape:
    """A model's shape. Of experts, a token pays for those it is sent to, and a step reads all of them."""
    matrices = 0
    for layer in spec.layers:
        attention = layer.attention
        matrices += spec.hidden_size * (sum(attention.qkv_sizes) + attention.output_size)
        active = layer.mlp.top_k if isinstance(layer.mlp, MoeSpec) else 1
        matrices += 3 * spec.hidden_size * layer.mlp.size * active
    groups = []
    for group in geometry.groups:
        heads = [spec.layers[i].attention for i in group.layer_ids]
        if heads:
            flops = sum(2 * one.num_heads * (one.k_head_dim + one.v_head_dim) for one in heads)
            groups.append(
                AttentionShape(
                    window=group.window,
                    num_kv_heads=min(one.num_kv_heads for one in heads),
                    kv_bytes_per_token=group.bytes_per_token,
                    flops_per_key=flops,
                )
            )
    return ModelShape(
        weight_bytes=weight_bytes,
        num_layers=len(spec.layers),
        layer_flops=2 * matrices,
        head_flops=2 * spec.hidden_size * spec.vocab_size,
        hidden_bytes=2 * spec.hidden_size,
        attention=tuple(groups),
    )


class StepWork(NamedTuple):
    """What one step computes: a token for each of `num_rows`, which together read `kv_bytes`, and chunks of prompts."""

    num_rows: int = 0
    kv_bytes: float = 0.0
    num_prompt_tokens: int = 0
    prompt_flops: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """The coefficients. Those without a unit are times what the hardware's best would take; 1.2 is 83% of it."""

    weights: float
    kv: float
    layer_us: float
    row_flops: float
    row_us: float
    prompt_flops: float
    prompt_layer_us: float
    prompt_token_us: float

    def vector(self) -> Floats:
        return np.array(list(asdict(self).values()), dtype=np.float64)

    @classmethod
    def of_vector(cls, values: Floats) -> StepCosts:
        names = (
            "weights",
            "kv",
            "layer_us",
            "row_flops",
            "row_us",
            "prompt_flops",
            "prompt_layer_us",
            "prompt_token_us",
        )
        return cls(**dict(zip(names, map(float, values), strict=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """Seconds of a step of one model on one device, or on `num_ranks` of them that share it."""

    shape: ModelShape
    gpu: Gpu
    costs: StepCosts
    num_ranks: int = 1

    def __post_init__(self) -> None:
        if self.num_ranks < 1:
            raise ConfigError(f"ranks: found {self.num_ranks}; wanted at least 1.")

    @property
    def seconds_per_kv_byte(self) -> float:
        return self.costs.kv / self.gpu.bytes_per_s

    def fixed_s(self, num_rows: int) -> float:
        """A decode step of so many rows, without its keys and values."""
        shape, gpu, costs = self.shape, self.gpu, self.costs
        per_row = costs.row_flops * (shape.layer_flops + shape.head_flops) / gpu.flops_per_s + costs.row_us * 1e-6
        weights = costs.weights * shape.weight_bytes / gpu.bytes_per_s
        return weights + shape.num_layers * costs.layer_us * 1e-6 + num_rows * per_row + self._collectives_s(num_rows)

    def prompt_s(self, num_tokens: int, flops: float) -> float:
        """What a chunk of prompts adds to a step."""
        if not num_tokens:
            return 0.0
        shape, gpu, costs = self.shape, self.gpu, self.costs
        above = max(0.0, flops / gpu.flops_per_s - shape.weight_bytes / gpu.bytes_per_s)
        each = costs.prompt_token_us * 1e-6 + self._moved_s
        return costs.prompt_flops * above + shape.num_layers * costs.prompt_layer_us * 1e-6 + num_tokens * each

    def step_s(self, work: StepWork) -> float:
        decode = self.fixed_s(work.num_rows) + work.kv_bytes * self.seconds_per_kv_byte
        return decode + self.prompt_s(work.num_prompt_tokens, work.prompt_flops)

    @property
    def _moved_s(self) -> float:
        """A token's way through the all-reduces of all layers."""
        if self.num_ranks == 1:
            return 0.0
        return self.shape.num_layers * ALL_REDUCES_PER_LAYER * self.shape.hidden_bytes / LINK_BYTES_PER_S

    def _collectives_s(self, num_rows: int) -> float:
        if self.num_ranks == 1:
            return 0.0
        return self.shape.num_layers * ALL_REDUCES_PER_LAYER * ALL_REDUCE_US * 1e-6 + num_rows * self._moved_s


def features(shape: ModelShape, gpu: Gpu, work: StepWork) -> Floats:
    """What each coefficient is multiplied with, in milliseconds: `costs.vector() @ features(...)` is the step."""
    weights_ms = 1e3 * shape.weight_bytes / gpu.bytes_per_s
    prompt_ms = 1e3 * work.prompt_flops / gpu.flops_per_s
    has_prompt = work.num_prompt_tokens > 0
    return np.array(
        [
            weights_ms,
            1e3 * work.kv_bytes / gpu.bytes_per_s,
            1e-3 * shape.num_layers,
            1e3 * work.num_rows * (shape.layer_flops + shape.head_flops) / gpu.flops_per_s,
            1e-3 * work.num_rows,
            max(0.0, prompt_ms - weights_ms) if has_prompt else 0.0,
            1e-3 * shape.num_layers if has_prompt else 0.0,
            1e-3 * work.num_prompt_tokens,
        ]
    )
