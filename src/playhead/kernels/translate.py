"""From full pages to a window group's pages, for one forward: the one op that reads the mapping.

It takes tokens and not requests, because captured segments of a breakable graph may read slots of tokens alone. A token
whose row differs from the row before it is the first query of its request: it brings the pages behind it that its
window shows. Every token brings the page it stands in.

Shapes: T tokens, A >= T entries of the workspace, R rows of the page table, P pages per row, L full locations,
C pages a window can touch, b requests.
"""

from __future__ import annotations

import torch
from torch import Tensor

from playhead.kernels.op import op


def max_pages_seen(window: int, page_size: int) -> int:
    """The most pages that one query's window can touch: 17 keys of pages of 16 lie in two, 18 keys in up to three."""
    return (window + page_size - 2) // page_size + 1


@op(
    mutates=("window_locs_A", "window_table_RP"),
    bind="cpu.translate:bind_translate",
    cuda="triton.translate:launch_translate",
)
def translate(
    window_locs_A: Tensor, window_table_RP: Tensor, mapping_L: Tensor, page_table_RP: Tensor,
    full_locs_T: Tensor, rows_T: Tensor, positions_T: Tensor, page_size: int, window: int,
) -> None:  # fmt: skip
    """Writes what a forward's window layers need, each from one reading of the mapping.

    `window_locs_A[:T]` become the tokens' locations in the window group: -1 stays -1, and 0 stays 0. In
    `window_table_RP` the entries of the pages that this forward's queries see become window pages; no other entry is
    touched. With page size 4, window 6 and a request whose queries stand at 9 and 10, these are pages 1 and 2 of its
    row: the query at 9 sees keys 4 to 9.

    The last entry of `mapping_L` is -1, which index -1 reads. A request's tokens stand next to each other.
    """
    window_locs_A[: full_locs_T.shape[0]] = mapping_L[full_locs_T]
    before_T = torch.cat((rows_T.new_full((1,), -1), rows_T[:-1]))
    last_page_T = positions_T // page_size
    first_page_T = torch.where(rows_T == before_T, last_page_T, (positions_T - window + 1).clamp_min(0) // page_size)
    column_C = torch.arange(max_pages_seen(window, page_size), dtype=torch.int32, device=rows_T.device)
    # A column after the last page repeats it: the same value is written twice.
    page_TC = (first_page_T[:, None] + column_C).minimum(last_page_T[:, None])
    window_loc_TC = mapping_L[page_table_RP[rows_T[:, None], page_TC] * page_size]
    window_table_RP[rows_T[:, None], page_TC] = window_loc_TC // page_size
