"""What ranks of one model do together, as ops: a graph records an op of ours, and its replay meets the other ranks.

torch's own collectives hand out their results through objects that no schema shows, so a recorder cannot redo them.
These say what they write. Each runs on the process group of this process, whose ranks must all call the same ops in the
same order: by gloo on a CPU, by NCCL on GPUs.

Shapes: T rows, I columns of this rank, O columns of all ranks, N ranks, S columns that a rank has at most.
"""

from __future__ import annotations

from torch import Tensor, distributed
from torch.nn import functional as F

from playhead.kernels.op import op

try:
    from torch.distributed import all_gather_single
except ImportError:  # torch before 2.13
    from torch.distributed import all_gather_into_tensor as all_gather_single


def _sum_over_ranks(x: Tensor) -> None:
    distributed.all_reduce(x)


def _largest_over_ranks(x: Tensor) -> None:
    distributed.all_reduce(x, distributed.ReduceOp.MAX)


def _first_rank_tells(x: Tensor) -> None:
    distributed.broadcast(x, src=0)


def _gather_columns(out_TO: Tensor, mine_TI: Tensor, share: int, num_copies: int) -> None:
    num_ranks, (num_rows, num_columns) = distributed.get_world_size(), mine_TI.shape
    if num_ranks == 1 and mine_TI.data_ptr() == out_TO.data_ptr():
        all_gather_single(out_TO, mine_TI)
        return
    padded_TS = mine_TI.contiguous() if num_columns == share else F.pad(mine_TI, (0, share - num_columns))
    all_NTS = mine_TI.new_empty((num_ranks, num_rows, share))
    all_gather_single(all_NTS.view(num_ranks * num_rows, share), padded_TS)
    by_row = all_NTS[::num_copies].transpose(0, 1).reshape(num_rows, -1)
    out_TO.copy_(by_row[:, : out_TO.shape[1]])


@op(mutates=("x",), cuda=_sum_over_ranks)
def sum_over_ranks_(x: Tensor) -> None:
    """Every rank's `x` becomes the sum of all ranks'. The order of the sum is the library's."""
    _sum_over_ranks(x)


@op(mutates=("x",), cuda=_largest_over_ranks)
def largest_over_ranks_(x: Tensor) -> None:
    """Every rank's `x` becomes the largest of all ranks', number by number."""
    _largest_over_ranks(x)


@op(mutates=("x",), cuda=_first_rank_tells)
def first_rank_tells_(x: Tensor) -> None:
    """Every rank's `x` becomes the first rank's."""
    _first_rank_tells(x)


@op(mutates=("out_TO",), cuda=_gather_columns)
def gather_columns(out_TO: Tensor, mine_TI: Tensor, share: int, num_copies: int) -> None:
    """Writes all ranks' columns into `out_TO`, in the order of the ranks.

    Every rank has `share` columns, except that the last ranks may have fewer; `num_copies` ranks after each other have
    the same columns. One rank alone may give the same memory twice: then nothing moves.
    """
    _gather_columns(out_TO, mine_TI, share, num_copies)


def all_columns(mine_TI: Tensor, num_columns: int, share: int, *, num_ranks: int, num_copies: int = 1) -> Tensor:
    """[T, num_columns]: what `gather_columns` writes, in memory of its own unless there is one rank."""
    out_TO = mine_TI if num_ranks == 1 else mine_TI.new_empty((mine_TI.shape[0], num_columns))
    gather_columns(out_TO, mine_TI, share, num_copies)
    return out_TO
