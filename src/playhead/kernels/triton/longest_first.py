# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Triton kernel of `longest_first`: a request's place is the number of requests that come before it.

Shapes: B requests of the step, M requests of a program.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from playhead.kernels.sizes import ceil_div, next_power_of_2
from playhead.kernels.triton.dependent import after_upstream, dependent, let_downstream_start

BLOCK_REQUESTS = 16


@triton.jit(do_not_specialize=["num_requests"])  # it differs by batch size, and one binary must serve many
def longest_first_kernel(
    seq_lens, order, num_requests, BLOCK_B: tl.constexpr, BLOCK_M: tl.constexpr, DEPENDENT: tl.constexpr
):
    let_downstream_start(DEPENDENT)
    after_upstream(DEPENDENT)
    request_B, request_M = tl.arange(0, BLOCK_B), tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    live_B, live_M = request_B < num_requests, request_M < num_requests
    len_B = tl.load(seq_lens + request_B, mask=live_B, other=-1)
    len_M = tl.load(seq_lens + request_M, mask=live_M, other=0)
    is_longer_MB = len_B[None, :] > len_M[:, None]
    is_as_long_MB = (len_B[None, :] == len_M[:, None]) & (request_B[None, :] < request_M[:, None])
    place_M = tl.sum((is_longer_MB | is_as_long_MB).to(tl.int32), 1)
    tl.store(order + place_M, request_M, mask=live_M)


def launch_longest_first(seq_lens_B: Tensor) -> Tensor:
    order_B, num_requests = seq_lens_B.new_empty(seq_lens_B.shape), seq_lens_B.shape[0]
    longest_first_kernel[(ceil_div(num_requests, BLOCK_REQUESTS),)](
        seq_lens_B, order_B, num_requests,
        BLOCK_B=next_power_of_2(num_requests), BLOCK_M=BLOCK_REQUESTS, **dependent(seq_lens_B),
    )  # fmt: skip
    return order_B
