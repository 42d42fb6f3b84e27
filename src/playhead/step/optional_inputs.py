"""Inputs that only some models or backends read: the requirements name them, and no model here reads one yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from playhead.graph.slots import GraphSlot, IndexSpace, PaddingPolicy, host_vector

POSITIONS = IndexSpace(name="positions", dtype=torch.int32)
MAMBA_SLOTS = IndexSpace(name="mamba state slots", dtype=torch.int32)

SHORTEST_LENGTH = 1  # with length 0 a softmax has no terms, and its NaN would reach live rows through a reduction


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionalInputs:
    """Which of them are wanted. The others are declared all the same, and have no memory."""

    host_lengths: bool = False
    """`seq_lens_cpu`, for a backend that plans on the host. A graph cannot advance it: such a step is filled anew."""
    encoder: bool = False
    mamba_tracking: bool = False
    mrope: bool = False
    pp_proxies: Mapping[str, tuple[int, torch.dtype]] = field(default_factory=dict)
    """Width and dtype of each tensor the previous pipeline stage hands over, by name."""

    def slots(self, seq_len_fill_value: int) -> list[GraphSlot]:
        """All of them. An input that is not wanted is disabled: reading it is an error that names it."""
        seq_lens_cpu = GraphSlot(
            name="seq_lens_cpu",
            shape_fn=lambda bs, tokens: (bs,),
            dtype=torch.int32,
            axis="bs",
            device=torch.device("cpu"),
            padding_policy=PaddingPolicy.FILL_SENTINEL,
            pad_value=seq_len_fill_value,
            enabled=self.host_lengths,
        )
        mrope_positions = GraphSlot(
            name="mrope_positions",
            shape_fn=lambda bs, tokens: (3, tokens),
            dtype=POSITIONS.dtype,
            axis="tokens",
            padding_policy=PaddingPolicy.ZERO,
            index=POSITIONS,
            staged=True,
            slice_fn=lambda buffer, start, stop: buffer[:, start:stop],
            enabled=self.mrope,
        )
        encoder_lens = host_vector("encoder_lens", "bs", torch.int32, pad_value=SHORTEST_LENGTH, fill_once=True)
        mamba_indices = host_vector("mamba_track_indices", "bs", MAMBA_SLOTS.dtype, index=MAMBA_SLOTS)
        mamba_mask = host_vector("mamba_track_mask", "bs", torch.bool)
        return [
            seq_lens_cpu,
            mrope_positions,
            replace(encoder_lens, enabled=self.encoder),
            replace(mamba_indices, enabled=self.mamba_tracking),
            replace(mamba_mask, enabled=self.mamba_tracking),
            *(proxy_slot(name, width, dtype) for name, (width, dtype) in self.pp_proxies.items()),
        ]


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
