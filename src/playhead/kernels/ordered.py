"""Matmul and attention that add up in an order which depends on a row alone: for engines with `batch_invariant`.

On a GPU a row's result has the same bits whatever rows are beside it, however many they are, and wherever the row
stands among them. On a CPU the references run, whose order is torch's own.

Shapes: T tokens, I inputs, O outputs; of attention as in `attention.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from playhead.kernels.attention import extend
from playhead.kernels.op import op

LONG_ROW = 4096
"""Inputs that are added up from the first to the last. A longer row is cut into chunks, whose sums are added up."""


@op(mutates=("out_TO",), cuda="triton.ordered_matmul:launch_matmul_in_order")
def matmul_in_order(
    x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None, out_TO: Tensor, scale: float, adds: bool
) -> None:
    """Writes `scale * (x @ weight.T + bias)` into `out_TO`, or adds it to what is there. Rounded once."""
    product_TO = torch.mm(x_TI.float(), weight_OI.float().t())
    if bias_O is not None:
        product_TO += bias_O.float()
    product_TO *= scale
    out_TO.copy_(product_TO + out_TO.float() if adds else product_TO)


@op(
    mutates=("out_THE", "parts", "tops_sums", "arrivals"),
    cuda="triton.ordered_attention:launch_attend_in_order",
)
def attend_in_order(
    q_THD: Tensor, out_THE: Tensor, k_cache_NSKD: Tensor, v_cache_NSKE: Tensor,
    page_table_RP: Tensor, rows_B: Tensor, seq_lens_B: Tensor,
    sinks_H: Tensor | None, scale: float, window: int | None, softcap: float | None,
    query_starts_B: Tensor, query_lens_B: Tensor,
    parts: Tensor, tops_sums: Tensor, arrivals: Tensor, decodes: bool,
) -> None:  # fmt: skip
    """What `extend` computes, for steps of every kind. With `decodes` no request has more than one query.

    The three before it are scratch of the kernel: a part of `parts` holds H results of E float32, with two more numbers
    for each in `tops_sums`; `arrivals` has an int32 for each request and head, and is left zeroed. How many parts there
    are is free.
    """
    extend.reference(
        q_THD, out_THE, k_cache_NSKD, v_cache_NSKE, page_table_RP, rows_B, seq_lens_B, sinks_H, scale, window, softcap,
        query_starts_B, query_lens_B,
    )  # fmt: skip
