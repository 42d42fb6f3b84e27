"""The inputs of decode and prefill graphs, declared once.

A new batch field is one more `GraphSlot` here, or in the component that needs it, through `InputFeatures.extra`; no
runner changes. Requests and tokens that do not exist look like one null request: position 0, the sink location,
length 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from playhead.graph.registry import CudaGraphBufferRegistry
from playhead.graph.sharing import InputBufferPool
from playhead.graph.slots import (
    GraphSlot,
    IndexSpace,
    PaddingPolicy,
    SourceFn,
    host_vector,
)

# 2^31 locations of the smallest layer geometry in use are more memory than any device has.
FULL_LOCS = IndexSpace(name="full locations", dtype=torch.int32)
ROWS = IndexSpace(name="request rows", dtype=torch.int32)
POSITIONS = IndexSpace(name="positions", dtype=torch.int32)
MAMBA_SLOTS = IndexSpace(name="mamba state slots", dtype=torch.int32)

ADVANCES = "decode leaves its inputs as the next step's"

SHORTEST_LENGTH = 1  # with length 0 a softmax has no terms, and its NaN would reach live rows through a reduction


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFeatures:
    """Inputs that only some models or backends read. What nobody reads is declared, and has no memory."""

    host_lengths: bool = False
    """`seq_lens_cpu`, for a backend that plans on the host. A graph cannot advance it: such a step is filled anew."""
    seq_len_fill_value: int = SHORTEST_LENGTH
    """The length of a padded request: what the attention backend wants there."""
    encoder: bool = False
    mamba_tracking: bool = False
    mrope: bool = False
    pp_proxies: Mapping[str, tuple[int, torch.dtype]] = field(default_factory=dict)
    """Width and dtype of each tensor the previous pipeline stage hands over, by name."""
    extra: tuple[GraphSlot, ...] = ()
    """Slots that other components declare: attention, sampling, adapters."""


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
    """All declarations, then freeze."""
    for slot in (*usual_slots(features, advances), *optional_slots(features), *features.extra):
        registry.register_slot(slot)
    registry.freeze()
    return registry


def usual_slots(features: InputFeatures, advances: str | None = None) -> tuple[GraphSlot, ...]:
    """What every model reads. `advances` says why a graph may write what the next step differs in."""
    return (
        # An id below zero is -row: that row's newest token, which is on the device alone.
        host_vector("input_ids", "tokens", torch.int32, graph_writes=advances),
        host_vector("positions", "tokens", POSITIONS.dtype, index=POSITIONS, graph_writes=advances),
        host_vector("out_cache_loc", "tokens", FULL_LOCS.dtype, index=FULL_LOCS, graph_writes=advances),
        host_vector("req_pool_indices", "bs", ROWS.dtype, index=ROWS),
        host_vector("seq_lens", "bs", torch.int32, pad_value=features.seq_len_fill_value, graph_writes=advances),
        host_scalar("num_token_non_padded", lambda batch, ctx: np.array([ctx.raw_num_tokens], dtype=np.int32)),
    )


def optional_slots(features: InputFeatures) -> list[GraphSlot]:
    """What features add. Without its feature a slot is disabled: who reads it all the same is told so by name."""
    slots = [
        GraphSlot(
            name="seq_lens_cpu",
            shape_fn=lambda bs, tokens: (bs,),
            dtype=torch.int32,
            axis="bs",
            device=torch.device("cpu"),
            padding_policy=PaddingPolicy.FILL_SENTINEL,
            pad_value=features.seq_len_fill_value,
            enabled=features.host_lengths,
        ),
        GraphSlot(
            name="mrope_positions",
            shape_fn=lambda bs, tokens: (3, tokens),
            dtype=POSITIONS.dtype,
            axis="tokens",
            padding_policy=PaddingPolicy.ZERO,
            index=POSITIONS,
            staged=True,
            slice_fn=lambda buffer, start, stop: buffer[:, start:stop],
            enabled=features.mrope,
        ),
    ]
    encoder_lens = host_vector("encoder_lens", "bs", torch.int32, pad_value=SHORTEST_LENGTH, fill_once=True)
    mamba_indices = host_vector("mamba_track_indices", "bs", MAMBA_SLOTS.dtype, index=MAMBA_SLOTS)
    mamba_mask = host_vector("mamba_track_mask", "bs", torch.bool)
    slots.append(replace(encoder_lens, enabled=features.encoder))
    slots += [replace(slot, enabled=features.mamba_tracking) for slot in (mamba_indices, mamba_mask)]
    slots += [proxy_slot(name, width, dtype) for name, (width, dtype) in features.pp_proxies.items()]
    return slots


def host_scalar(name: str, source_fn: SourceFn) -> GraphSlot:
    """One number per step, computed from the step's sizes."""
    return GraphSlot(
        name=name,
        shape_fn=lambda bs, tokens: (1,),
        dtype=torch.int32,
        axis="none",
        padding_policy=PaddingPolicy.KEEP_PAD,
        source_fn=source_fn,
        staged=True,
    )


def proxy_slot(name: str, width: int, dtype: torch.dtype) -> GraphSlot:
    """Hidden states from the previous pipeline stage: on the device already, so copied there."""
    return GraphSlot(
        name=f"pp_proxy.{name}",
        shape_fn=lambda bs, tokens: (tokens, width),
        dtype=dtype,
        axis="tokens",
        padding_policy=PaddingPolicy.ZERO,
        proxy=name,
    )
