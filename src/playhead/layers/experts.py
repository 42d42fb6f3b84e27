"""The experts that a rank has, and what becomes of their outputs.

Shapes: T tokens, M hidden, C chosen per token, P = T * C (token, expert) pairs.
"""

from __future__ import annotations

import torch


class Experts:
    """All experts of a block."""

    def __init__(self, count: int) -> None:
        self.count = count

    def places(self, experts_TC: torch.Tensor, live_T: torch.Tensor | None) -> torch.Tensor:
        """Where each chosen expert's matrices are; `count` if they are not here, and for padding.

        How an expert's product rounds depends on its number of rows. So padding rows must not be among them: their
        values, and the experts chosen for them, are chance.
        """
        return experts_TC if live_T is None else torch.where(live_T[:, None], experts_TC, self.count)

    def rows(self, table_XI: torch.Tensor, places_P: torch.Tensor) -> torch.Tensor:
        """Each pair's row of a table with a row per expert; of an expert that is not here, anything."""
        return table_XI[places_P.clamp(max=self.count - 1)]

    def combined(
        self, out_TCM: torch.Tensor, weights_TC: torch.Tensor, places_TC: torch.Tensor, dtype: torch.dtype
    ) -> torch.Tensor:
        """What the chosen experts give, weighted, in `dtype`. A pair without an expert adds zeros: its row of `out_TCM`
        went through no matrix, and may hold anything."""
        out_TCM = torch.where((places_TC < self.count)[..., None], out_TCM, 0.0)
        return self._summed(out_TCM, weights_TC, dtype)

    def _summed(self, out_TCM: torch.Tensor, weights_TC: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return (out_TCM.float() * weights_TC[..., None]).sum(1).to(dtype)
