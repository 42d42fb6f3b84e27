"""The registries of a step's inputs: what one may have beyond the usual inputs, and what it is captured on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from playhead.graph.registry import CudaGraphBufferRegistry
from playhead.graph.sharing import InputBufferPool
from playhead.graph.slots import Batch, FillContext, GraphSlot, PaddingPolicy
from playhead.step.inputs import StepInput, usual_inputs
from playhead.step.optional_inputs import SHORTEST_LENGTH, OptionalInputs

ADVANCES = "decode leaves its inputs as the next step's"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFeatures:
    """Which inputs a registry has beyond those that every model reads."""

    seq_len_fill_value: int = SHORTEST_LENGTH
    """The length of a padded request: what the attention backend wants there."""
    extra: tuple[StepInput, ...] = ()
    """More inputs that are made from a step's requests."""
    optional: OptionalInputs = field(default_factory=OptionalInputs)

    @property
    def made(self) -> tuple[StepInput, ...]:
        """The inputs that are made from a step's requests."""
        return (*usual_inputs(self.seq_len_fill_value), *self.extra)


def build_decode_registry(
    *,
    max_bs: int,
    device: torch.device | str,
    features: InputFeatures | None = None,
    pool: InputBufferPool | None = None,
    num_tokens_per_bs: int = 1,
) -> CudaGraphBufferRegistry:
    """Inputs of a step with one token per request, or with `num_tokens_per_bs` where a draft is verified.

    A decode graph may leave them as the next step's: fed back, one further, at the next place.
    """
    max_num_tokens = max_bs * num_tokens_per_bs
    registry = CudaGraphBufferRegistry(max_bs=max_bs, max_num_tokens=max_num_tokens, device=device, pool=pool)
    return register_inputs(registry, features or InputFeatures(), advances=ADVANCES)


def build_prefill_registry(
    *,
    max_bs: int,
    max_num_tokens: int,
    device: torch.device | str,
    features: InputFeatures | None = None,
    pool: InputBufferPool | None = None,
) -> CudaGraphBufferRegistry:
    """Inputs of a step over tokens. What has a row per request is for attention: its plan, or a full graph."""
    registry = CudaGraphBufferRegistry(max_bs=max_bs, max_num_tokens=max_num_tokens, device=device, pool=pool)
    return register_inputs(registry, features or InputFeatures())


def register_inputs(
    registry: CudaGraphBufferRegistry, features: InputFeatures, *, advances: str | None = None
) -> CudaGraphBufferRegistry:
    """All declarations, then freeze. `advances` says why a graph may write what the next step differs in."""
    for one in features.made:
        registry.register_slot(replace(one.slot, graph_writes=advances if one.advances else None))
    for slot in (num_live_tokens(), *features.optional.slots(features.seq_len_fill_value)):
        registry.register_slot(slot)
    registry.freeze()
    return registry


def one_null_request(registry: CudaGraphBufferRegistry, max_context_tokens: int) -> Callable[[FillContext], Batch]:
    """What a step over tokens is captured on: a null request of the bucket's tokens, all of it in the sink."""

    def placeholder(ctx: FillContext) -> Batch:
        length = np.array([placeholder_tokens(ctx.raw_num_tokens, max_context_tokens)], dtype=np.int32)
        queries = {"query_starts": np.zeros(1, np.int32), "query_lens": length}
        return registry.null_batch(ctx) | {"seq_lens": length} | queries

    return placeholder


def placeholder_tokens(num_tokens: int, max_context_tokens: int) -> int:
    """Tokens of a bucket that are one request's: it cannot have more than its row of the page table has places.

    The tokens after them belong to no request, like padding.
    """
    return min(num_tokens, max_context_tokens)


def num_live_tokens() -> GraphSlot:
    """How many tokens the step has, from its size alone."""
    return GraphSlot(
        name="num_token_non_padded",
        shape_fn=lambda bs, tokens: (1,),
        dtype=torch.int32,
        axis="none",
        padding_policy=PaddingPolicy.KEEP_PAD,
        source_fn=lambda batch, ctx: np.array([ctx.raw_num_tokens], dtype=np.int32),
        staged=True,
    )
