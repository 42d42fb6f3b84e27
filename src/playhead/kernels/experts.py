"""The matmul of a mixture of experts: neighbouring rows go through the matrix of their expert.

Shapes: P (token, expert) pairs sorted by expert, X experts, I inputs, O outputs.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from playhead.kernels.op import op


def every_expert_over_every_row(rows_PI: Tensor, weights_XIO: Tensor, ends_X: Tensor) -> Tensor:
    """The same without asking the device where groups end: X times the work, and nothing for the host to read."""
    places_P1 = torch.arange(rows_PI.shape[0], device=rows_PI.device)[:, None]
    out_PO = rows_PI.new_zeros(rows_PI.shape[0], weights_XIO.shape[2])
    for weight_IO, end in zip(weights_XIO.flip(0), ends_X.flip(0), strict=True):
        # From the last expert to the first, each writes everything before its end; later ones overwrite their part.
        out_PO = torch.where(places_P1 < end, rows_PI @ weight_IO, out_PO)
    return out_PO


def suits_torch(rows_PI: Tensor, weights_XIO: Tensor) -> bool:
    """Whether torch's grouped matmul takes them: each row, of either, must begin at a multiple of 16 bytes."""
    _, *in_matrix = weights_XIO.stride()
    pitches = (rows_PI.stride(0), weights_XIO.stride(0), max(in_matrix))
    return all(pitch * rows_PI.element_size() % 16 == 0 for pitch in pitches)


def grouped_matmul_cuda(rows_PI: Tensor, weights_XIO: Tensor, ends_X: Tensor) -> Tensor:
    # torch has a kernel for bfloat16. For other types it reads the groups' ends on the host, which no graph can hold.
    if rows_PI.dtype is torch.bfloat16 and suits_torch(rows_PI, weights_XIO):
        return F.grouped_mm(rows_PI, weights_XIO, offs=ends_X)
    return every_expert_over_every_row(rows_PI, weights_XIO, ends_X)


# An op of our own: torch traces its grouped matmul in bfloat16 only, although it runs in every type.
@op(
    out=lambda rows_PI, weights_XIO, ends_X: rows_PI.new_empty((rows_PI.shape[0], weights_XIO.shape[2])),
    cuda=grouped_matmul_cuda,
)
def grouped_matmul(rows_PI: Tensor, weights_XIO: Tensor, ends_X: Tensor) -> Tensor:
    """Row p times the matrix of its expert: the first x for which `ends_X[x]` is past p."""
    if not suits_torch(rows_PI, weights_XIO):
        return every_expert_over_every_row(rows_PI, weights_XIO, ends_X)
    return F.grouped_mm(rows_PI, weights_XIO, offs=ends_X)
