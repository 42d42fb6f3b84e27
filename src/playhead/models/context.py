"""What a forward pass needs from outside the model.

Shapes: T tokens, N rows whose logits may be wanted, M hidden, X = all heads of q, k and v, Y = all heads of the output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from playhead.kernels.elementwise import embed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowsRead:
    """The rows of a step that are read: `index_T` begins with them. There are `most`, or T where that is less.

    Rows of requests come first, then zeros, which are padding. Only the first request's own row may be row 0.
    """

    index_T: torch.Tensor
    most: int

    @property
    def index(self) -> torch.Tensor:
        # Cut where it is used: a size that crosses from piece to piece of a trace is a symbol that the compiler of the
        # other piece does not know. `min` would make a number of it, and a trace is for all sizes.
        return self.index_T[: torch.sym_min(self.index_T.shape[0], self.most)]  # type: ignore[no-untyped-call]

    def live(self) -> torch.Tensor:
        """Which of them are a request's, and not padding."""
        live_N = self.index > 0
        live_N[:1].fill_(True)
        return live_N

    def of(self, x_TM: torch.Tensor) -> torch.Tensor:
        return embed(self.index, x_TM, 1.0)  # an embedding is a choice of rows, times one


class ForwardContext(Protocol):
    """How these tokens attend. The context itself knows where they stand and what is kept of them."""

    def live_rows(self) -> torch.Tensor | None:
        """Which rows are tokens, where others are padding; None if all are, or if no layer asks."""

    def room(self, layer_index: int, h_TM: torch.Tensor) -> torch.Tensor:
        """Memory for `qkv_TX` of the next `attend`, for tokens like `h_TM`: what is computed into it is not copied."""

    def attend(self, layer_index: int, qkv_TX: torch.Tensor) -> torch.Tensor:
        """Keep these keys and values, then give out_TY: each query over all keys its layer lets it see.

        Queries and keys come as they were projected. `Decoder.transforms` says what they go through first; the context
        may do that in place. Scale, window, softcap and sinks are the layer's own: the context has them from the spec
        and `Decoder.sinks`. In a captured graph this call is a break.
        """

    def rows_read(self) -> RowsRead | None:
        """The rows whose logits may be wanted; None: all. The last layer's attention keeps the keys of all tokens, and
        what follows it is computed for these rows alone: `layers` gives them, in this order.
        """

    def parts_left(self, layer_index: int) -> int:
        """In how many parts of each head `attend` leaves its output, for layers that can merge them; 0: none."""
