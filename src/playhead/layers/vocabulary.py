"""The token ids that a decoder has embeddings and logits of.

Shapes: T tokens, M hidden, V ids.
"""

from __future__ import annotations

import torch

from playhead.kernels.elementwise import embed


class Vocabulary:
    """All ids of a model."""

    first_id = 0

    def __init__(self, num_ids: int) -> None:
        self.num_ids = num_ids

    def embed(self, ids_T: torch.Tensor, table_VM: torch.Tensor, scale: float) -> torch.Tensor:
        """Rows of the table times `scale`."""
        return embed(ids_T, table_VM, scale)
