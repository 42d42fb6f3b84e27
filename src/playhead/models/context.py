"""What a forward pass needs from outside the model.

Shapes: T tokens, H heads, K kv heads, D head dim of q and k, E head dim of v.
"""

from __future__ import annotations

from typing import Protocol

import torch


class ForwardContext(Protocol):
    """Where these tokens stand, and how they attend."""

    @property
    def positions_T(self) -> torch.Tensor:  # noqa: N802  the suffix is the tensor's shape
        """Each token's position in its own sequence, counted from 0."""

    def attend(self, layer_index: int, q_THD: torch.Tensor, k_TKD: torch.Tensor, v_TKE: torch.Tensor) -> torch.Tensor:
        """Keep these keys and values, then give out_THE: each query over all keys its layer lets it see.

        Queries and keys come normalised and rotated. Scale, window, softcap and sinks are the layer's own, so the
        context has them from the spec and `Decoder.sinks`. In a captured graph this call is a break.
        """
