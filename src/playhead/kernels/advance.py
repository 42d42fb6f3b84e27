"""What makes a decode graph's inputs those of the next step, so that the host need not send them.

Shapes: B requests, T tokens, R rows of running requests, P pages per row.
"""

from __future__ import annotations

import numpy as np
import torch

from playhead.bound_ops import Work
from playhead.kernels.op import no_cuda, register_bound_op, register_op


def newest_ids_reference(ids_T: torch.Tensor, newest_R: torch.Tensor) -> torch.Tensor:
    """Token ids as they are; where -row stands, the newest token of that row, which the host has not read yet.

    With newest tokens (-, 7, 9), the ids (4, -2, 0) are (4, 9, 0).
    """
    return torch.where(ids_T < 0, newest_R[(-ids_T).clamp_min(0)], ids_T)


def advance_reference(
    tokens_B: torch.Tensor,
    input_ids_B: torch.Tensor,
    positions_B: torch.Tensor,
    seq_lens_B: torch.Tensor,
    out_cache_loc_B: torch.Tensor,
    num_generated_B: torch.Tensor,
    rows_B: torch.Tensor,
    num_live: torch.Tensor,
    newest_R: torch.Tensor,
    page_table_RP: torch.Tensor,
    page_size: int,
) -> None:
    """Every live request one token further: fed back, one longer, with its next place from the page table.

    The table must have the page of that place by now, or the host must fill the inputs of the next step. `num_live`
    is one number; the rows after it are null requests and stay what they are.
    """
    live_B = torch.arange(len(rows_B), dtype=torch.int32, device=rows_B.device) < num_live
    rows_B = torch.where(live_B, rows_B, 0).long()
    newest_R[rows_B] = tokens_B.to(newest_R.dtype)
    input_ids_B.copy_(torch.where(live_B, tokens_B, input_ids_B))
    # A request at the end of its context has no next place and is not run again; it stays where its row ends.
    max_tokens = page_table_RP.shape[1] * page_size
    positions_B.add_(live_B).clamp_max_(max_tokens - 1)
    seq_lens_B.add_(live_B).clamp_max_(max_tokens)
    num_generated_B.add_(live_B)
    next_loc_B = page_table_RP[rows_B, positions_B // page_size] * page_size + positions_B % page_size
    out_cache_loc_B.copy_(torch.where(live_B, next_loc_B, out_cache_loc_B))


def bind_advance(
    tokens_B: torch.Tensor,
    input_ids_B: torch.Tensor,
    positions_B: torch.Tensor,
    seq_lens_B: torch.Tensor,
    out_cache_loc_B: torch.Tensor,
    num_generated_B: torch.Tensor,
    rows_B: torch.Tensor,
    num_live: torch.Tensor,
    newest_R: torch.Tensor,
    page_table_RP: torch.Tensor,
    page_size: int,
) -> Work:
    """The reference by numpy, on the live requests alone."""
    every_row = (rows_B, tokens_B, input_ids_B, positions_B, seq_lens_B, out_cache_loc_B, num_generated_B)
    arrays = tuple(tensor.numpy() for tensor in every_row)
    count, newest, table = num_live.numpy(), newest_R.numpy(), page_table_RP.numpy()
    max_tokens = table.shape[1] * page_size

    def work() -> None:
        num_requests = count.item()
        rows, tokens, ids, positions, lengths, locs, generated = (array[:num_requests] for array in arrays)
        newest[rows] = tokens
        ids[:] = tokens
        np.minimum(positions + 1, max_tokens - 1, out=positions)
        np.minimum(lengths + 1, max_tokens, out=lengths)
        generated += 1
        page, slot = np.divmod(positions, page_size)
        locs[:] = table[rows, page] * page_size + slot

    return work


def newest_ids_into_reference(out_T: torch.Tensor, ids_T: torch.Tensor, newest_R: torch.Tensor) -> None:
    out_T.copy_(newest_ids_reference(ids_T, newest_R))


def bind_newest_ids_into(out_T: torch.Tensor, ids_T: torch.Tensor, newest_R: torch.Tensor) -> Work:
    out, ids, newest = out_T.numpy(), ids_T.numpy(), newest_R.numpy()

    def work() -> None:
        np.copyto(out, ids)
        unread = ids < 0
        if unread.any():
            out[unread] = newest[-ids[unread]]

    return work


def newest_ids_cpu(ids_T: torch.Tensor, newest_R: torch.Tensor) -> torch.Tensor:
    """The reference, into memory that a tape can fill again."""
    out_T = torch.empty_like(ids_T)
    newest_ids_into(out_T, ids_T, newest_R)
    return out_T


def _newest_ids_cuda(ids_T: torch.Tensor, newest_R: torch.Tensor) -> torch.Tensor:
    from playhead.kernels.triton.advance import launch_newest_ids

    return launch_newest_ids(ids_T, newest_R)


def _advance_cuda(*args: object) -> None:
    from playhead.kernels.triton.advance import launch_advance

    launch_advance(*args)  # type: ignore[arg-type]


def _like_ids(ids_T: torch.Tensor, newest_R: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(ids_T)


newest_ids_into = register_bound_op(
    "newest_ids_into",
    reference=newest_ids_into_reference,
    bind=bind_newest_ids_into,
    cuda=no_cuda,
    mutates=("out_T",),
)

newest_ids = register_op(
    "newest_ids",
    inline=True,
    reference=newest_ids_reference,
    cpu=newest_ids_cpu,
    cuda=_newest_ids_cuda,
    fake=_like_ids,
)

advance = register_bound_op(
    "advance",
    reference=advance_reference,
    bind=bind_advance,
    cuda=_advance_cuda,
    mutates=("input_ids_B", "positions_B", "seq_lens_B", "out_cache_loc_B", "num_generated_B", "newest_R"),
)
