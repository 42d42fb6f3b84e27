"""The product with blocks of small integers, compiled by numba for the CPU at hand. Imported at its first use.

torch has products with packed integers too. Those of float32 are not vectorised and take 10 to 30 times as long as a
plain product, and those of bfloat16 round every output to 8 bits.

Shapes: see `playhead.kernels.blocks`.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numba
import numpy as np
import torch

from playhead.kernels.blocks import BLOCK_SIZE, LANES
from playhead.kernels.cpu.arrays import Array, as_arrays
from playhead.kernels.op import Work

UNROLLED = 4  # inputs whose products are added up before the sum is stored
# Without OpenMP numba runs threads in a way that aborts the process when two of its threads call at once.
HAS_SAFE_THREADS = find_spec("numba.np.ufunc.omppool") is not None


# Compiled code is kept between starts. Each output is summed in the order of its inputs, so `fastmath`, which lets the
# compiler multiply and add at once, gives a row the same bits whatever stands beside it.
@numba.njit(fastmath=True, parallel=HAS_SAFE_THREADS, cache=True)  # type: ignore[untyped-decorator]
def block_product(
    out_TNL: Array, x_TBJ: Array, codes_NBJL: Array, scales_NBL: Array, offsets_NBL: Array, adds: bool
) -> None:
    """The innermost loop goes over the outputs of a group, and becomes a few instructions."""
    for n in numba.prange(codes_NBJL.shape[0]):
        total_L, sum_L = np.zeros(LANES, np.float32), np.zeros(LANES, np.float32)
        for t in range(x_TBJ.shape[0]):
            for lane in range(LANES):
                total_L[lane] = out_TNL[t, n, lane] if adds else np.float32(0)
            for b in range(x_TBJ.shape[1]):
                sum_of_x = np.float32(0)
                for lane in range(LANES):
                    sum_L[lane] = np.float32(0)
                for j in range(0, BLOCK_SIZE, UNROLLED):
                    x0, x1, x2, x3 = x_TBJ[t, b, j], x_TBJ[t, b, j + 1], x_TBJ[t, b, j + 2], x_TBJ[t, b, j + 3]
                    sum_of_x += x0 + x1 + x2 + x3
                    for lane in range(LANES):
                        sum_L[lane] += (
                            np.float32(codes_NBJL[n, b, j, lane]) * x0
                            + np.float32(codes_NBJL[n, b, j + 1, lane]) * x1
                            + np.float32(codes_NBJL[n, b, j + 2, lane]) * x2
                            + np.float32(codes_NBJL[n, b, j + 3, lane]) * x3
                        )
                for lane in range(LANES):
                    total_L[lane] += scales_NBL[n, b, lane] * sum_L[lane] + offsets_NBL[n, b, lane] * sum_of_x
            for lane in range(LANES):
                out_TNL[t, n, lane] = total_L[lane]


def bind_block_matmul(*call: Any) -> Work | None:
    """None where the activations do not lie in one piece."""
    if not (call[0].is_contiguous() and call[1].is_contiguous()):
        return None
    out_TO, x_TI, codes, scales, offsets, adds = as_arrays(call)
    num_tokens = len(x_TI)
    out_TNL, x_TBJ = out_TO.reshape(num_tokens, -1, LANES), x_TI.reshape(num_tokens, -1, BLOCK_SIZE)

    if HAS_SAFE_THREADS:
        num_threads = torch.get_num_threads()
        numba.set_num_threads(min(num_threads, numba.config.NUMBA_NUM_THREADS))
        torch.set_num_threads(num_threads)  # numba's first use of OpenMP sets it for torch too

    def work() -> None:
        block_product(out_TNL, x_TBJ, codes, scales, offsets, adds)

    return work
