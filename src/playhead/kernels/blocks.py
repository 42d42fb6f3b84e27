"""The product with a matrix of small integers in blocks: weight = scale * code + offset, 32 weights to a block.

Outputs are grouped by `LANES`: the codes of one input for that many outputs lie side by side, so one instruction takes
16 or more of them.

Shapes: T tokens, I inputs, O outputs, N = O / LANES groups of outputs, B blocks of a row, J = 32 inputs of a block,
L = LANES.
"""

from __future__ import annotations

from torch import Tensor

from playhead.kernels.op import op

BLOCK_SIZE = 32
LANES = 32


@op(mutates=("out_TO",), bind="cpu.blocks:bind_block_matmul", cuda=None)
def block_matmul(
    out_TO: Tensor, x_TI: Tensor, codes_NBJL: Tensor, scales_NBL: Tensor, offsets_NBL: Tensor, adds: bool
) -> None:
    """Writes `x @ W.T` into `out_TO`, or adds it to what is there. A row's bits do not depend on the other rows."""
    weight_NBJL = codes_NBJL * scales_NBL[:, :, None] + offsets_NBL[:, :, None]
    weight_OI = weight_NBJL.permute(0, 3, 1, 2).reshape(out_TO.shape[1], x_TI.shape[1])
    product_TO = x_TI @ weight_OI.T
    out_TO.copy_(out_TO + product_TO if adds else product_TO)


def in_lanes(rows_OX: Tensor) -> Tensor:
    """Rows [O, ...] as groups of outputs whose members lie side by side: [N, ..., L]."""
    return rows_OX.view(-1, LANES, *rows_OX.shape[1:]).movedim(1, -1).contiguous()
