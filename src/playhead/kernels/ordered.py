"""Products and attention that add up in an order which depends on a row alone: for engines with `batch_invariant`.

On a GPU a row's result has the same bits whatever rows are beside it, however many they are, and wherever the row
stands among them. On a CPU the references run, whose order is torch's own.

Shapes: T tokens, I inputs, O outputs, M hidden; of a gated map J = 2 * I outputs, the gate's in [0, I) and up's in
[I, 2I); of attention as in `attention.py`.
"""

from __future__ import annotations

from torch import Tensor

from playhead.kernels.attention import extend
from playhead.kernels.op import op
from playhead.kernels.projection import gated_product, product, product_of_normed, project

LONG_ROW = 4096
"""Inputs that are added up from the first to the last. A longer row is cut into chunks, whose sums are added up."""


@op(mutates=("out_TO",), cuda="triton.ordered_matmul:launch_matmul_in_order")
def matmul_in_order(
    x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None, out_TO: Tensor, scale: float, adds: bool
) -> None:
    """Writes `scale * (x @ weight.T + bias)` into `out_TO`, or adds it to what is there. Rounded once."""
    project.reference(out_TO, x_TI, weight_OI, bias_O, scale, adds)


@op(
    out=lambda x_TI, weight_JI, *_: x_TI.new_empty((x_TI.shape[0], weight_JI.shape[0] // 2)),
    cuda="triton.ordered_projection:launch_gate_in_order",
)
def gate_in_order(x_TI: Tensor, weight_JI: Tensor, bias_J: Tensor | None, activation: str) -> Tensor:
    """`activation(gate) * up` of the product, whose gates and ups are rounded."""
    return gated_product(x_TI, weight_JI, bias_J, activation, x_TI.dtype)


@op(
    mutates=("out_TO",),
    out=lambda out_TO, x_TI, first_MI, first_bias_M, scale, residual_TM, *_: residual_TM.new_empty(residual_TM.shape),
    cuda="triton.ordered_projection:launch_project_normed_in_order",
)
def project_normed_in_order(
    out_TO: Tensor, x_TI: Tensor, first_MI: Tensor | None, first_bias_M: Tensor | None, scale: float,
    residual_TM: Tensor, norm_M: Tensor, x_norm_M: Tensor | None, eps: float, unit_offset: bool, centred: bool,
    weight_OM: Tensor | None, bias_O: Tensor | None, activation: str | None,
) -> Tensor:  # fmt: skip
    """`project_normed` in order: its first product is rounded, and so are gates and ups of its second."""
    dtype = x_TI.dtype
    x_TM = x_TI if first_MI is None else product(x_TI, first_MI, first_bias_M, scale, dtype)
    norm = (norm_M, x_norm_M, eps, unit_offset, centred)
    return product_of_normed(out_TO, x_TM, residual_TM, norm, weight_OM, bias_O, activation, dtype)


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
