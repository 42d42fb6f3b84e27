"""Many small device copies as few launches."""

from __future__ import annotations

from collections.abc import Sequence

import torch

# `_foreach_copy_` is not public API. Where a build lacks it, the copies go one by one.
FOREACH_COPY = torch.__dict__.get("_foreach_copy_")


def grouped_foreach_copy_(dsts: Sequence[torch.Tensor], srcs: Sequence[torch.Tensor]) -> int:
    """Copy each source into its destination; returns how many grouped launches that took.

    Groups are the pairs (destination dtype, source dtype): a mixed list would fall back to one launch per tensor
    inside torch. Three int64 pairs and two int32 pairs are two launches.
    """
    groups: dict[tuple[torch.dtype, torch.dtype], tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
    for dst, src in zip(dsts, srcs, strict=True):
        group = groups.setdefault((dst.dtype, src.dtype), ([], []))
        group[0].append(dst)
        group[1].append(src)
    for group_dsts, group_srcs in groups.values():
        if FOREACH_COPY is not None:
            FOREACH_COPY(group_dsts, group_srcs, non_blocking=True)
        else:
            for dst, src in zip(group_dsts, group_srcs, strict=True):
                dst.copy_(src, non_blocking=True)
    return len(groups)
