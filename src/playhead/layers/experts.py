"""The experts that a rank has, and what becomes of their outputs.

Shapes: T tokens, M hidden, C chosen per token, P = T * C (token, expert) pairs.
"""

from __future__ import annotations

import torch


class Experts:
    """All experts of a block."""

    def __init__(self, count: int) -> None:
        self.count = count

    def places(self, experts_TC: torch.Tensor) -> torch.Tensor:
        """Where each chosen expert's matrices are; `count` if they are not here."""
        return experts_TC

    def rows(self, table_XI: torch.Tensor, places_P: torch.Tensor) -> torch.Tensor:
        """Each pair's row of a table with a row per expert; of an expert that is not here, anything."""
        return table_XI[places_P]

    def combined(
        self, out_TCM: torch.Tensor, weights_TC: torch.Tensor, experts_TC: torch.Tensor, dtype: torch.dtype
    ) -> torch.Tensor:
        """What the chosen experts give, weighted, in `dtype`."""
        return (out_TCM.float() * weights_TC[..., None]).sum(1).to(dtype)
