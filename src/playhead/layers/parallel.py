"""The pieces of a decoder in which ranks meet: maps back to the residual, the vocabulary, experts.

Every other piece of a rank is an ordinary one of fewer heads or columns, and knows nothing of other ranks.

Shapes: T tokens, I inputs of this rank, O outputs, M hidden, V ids of this rank, C experts of a token, P pairs of both.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from playhead.kernels.collectives import all_columns, sum_over_ranks_
from playhead.kernels.vocabulary import embed_share
from playhead.layers.blocks import WEIGHT_FORMATS
from playhead.layers.experts import Experts
from playhead.layers.linear import PlainLinear, PlainWeights
from playhead.layers.shard import WHOLE, Shard
from playhead.layers.spec import StoredAs
from playhead.layers.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedWeights(PlainWeights):
    """Plain matrices of one rank of several."""

    def linear_back(
        self, num_inputs: int, num_outputs: int, *, num_units: int | None, has_bias: bool, scale: float
    ) -> PlainLinear:
        shard = self.shard
        num_rows = shard.size(num_outputs) if shard.is_exact else num_outputs
        num_columns = num_inputs if shard.is_exact else shard.size(num_inputs, num_units)
        has_bias = has_bias and (shard.is_exact or shard.rank == 0)  # what is summed over ranks has it once
        plain = PlainWeights.linear(self, num_columns, num_rows, has_bias=has_bias, scale=scale)
        if shard.is_exact:
            return GatheredLinear(plain, shard, (num_inputs, num_units), num_outputs)
        return SummedLinear(plain, shard)

    def vocabulary(self, num_ids: int) -> SharedVocabulary:
        return SharedVocabulary(num_ids, self.shard)

    def experts(self, count: int) -> SharedExperts:
        return SharedExperts(count, self.shard)


def weight_format(
    stored_as: StoredAs, *, dtype: torch.dtype, device: torch.device, shard: Shard = WHOLE
) -> PlainWeights:
    """How a rank stores its matrices."""
    if not shard.is_grouped:
        return WEIGHT_FORMATS[stored_as](dtype=dtype, device=device)
    assert stored_as is StoredAs.PLAIN, "ranks share matrices of plain numbers alone"
    return SharedWeights(dtype=dtype, device=device, shard=shard)


class LinearBack(PlainLinear):
    """A map after which ranks meet: a rank without others may fuse it with what follows."""

    def __init__(self, plain: PlainLinear, shard: Shard) -> None:
        super().__init__(plain.weight, plain.bias, plain.scale)
        self._shard = shard

    def is_fused_on(self, x_TI: torch.Tensor) -> bool:
        return self._shard.num_ranks == 1 and super().is_fused_on(x_TI)


class GatheredLinear(LinearBack):
    """Some outputs of all inputs. Inputs and outputs are gathered, so every output is one sum, as on one rank."""

    def __init__(self, plain: PlainLinear, shard: Shard, inputs: tuple[int, int | None], num_outputs: int) -> None:
        super().__init__(plain, shard)
        self._num_outputs = num_outputs
        self._num_inputs, num_units = inputs
        self._input_share = shard.share(self._num_inputs) if num_units is None else shard.size(*inputs)
        self._num_copies = 1 if num_units is None else shard.num_copies(num_units)

    def forward(self, x_TI: torch.Tensor, out_TO: torch.Tensor | None = None) -> torch.Tensor:
        assert out_TO is None, "no caller has a place for what goes back to the residual"
        return self._all_outputs(super().forward(self._all_inputs(x_TI)))

    def add_to(self, sum_TO: torch.Tensor, x_TI: torch.Tensor) -> torch.Tensor:
        first, end = self._shard.span(self._num_outputs)
        return self._all_outputs(super().add_to(sum_TO[:, first:end].contiguous(), self._all_inputs(x_TI)))

    def _all_inputs(self, x_TI: torch.Tensor) -> torch.Tensor:
        num_ranks, num_copies = self._shard.num_ranks, self._num_copies
        if num_copies == num_ranks:  # every rank has all of them: one KV head, say
            return x_TI
        return all_columns(x_TI, self._num_inputs, self._input_share, num_ranks=num_ranks, num_copies=num_copies)

    def _all_outputs(self, mine_TO: torch.Tensor) -> torch.Tensor:
        num_outputs, num_ranks = self._num_outputs, self._shard.num_ranks
        return all_columns(mine_TO, num_outputs, self._shard.share(num_outputs), num_ranks=num_ranks)


class SummedLinear(LinearBack):
    """All outputs of some inputs, summed over ranks."""

    def forward(self, x_TI: torch.Tensor, out_TO: torch.Tensor | None = None) -> torch.Tensor:
        product_TO = super().forward(x_TI, out_TO)
        sum_over_ranks_(product_TO)
        return product_TO

    def add_to(self, sum_TO: torch.Tensor, x_TI: torch.Tensor) -> torch.Tensor:
        return sum_TO.add_(self.forward(x_TI))


class SharedVocabulary(Vocabulary):
    """Some ids. A token's embedding is the sum over ranks: one of them has it, and the others add zeros."""

    def __init__(self, num_ids: int, shard: Shard) -> None:
        super().__init__(shard.size(num_ids))
        self.first_id, _ = shard.span(num_ids)

    def embed(self, ids_T: torch.Tensor, table_VM: torch.Tensor, scale: float) -> torch.Tensor:
        rows_TM = embed_share(ids_T, table_VM, scale, self.first_id)
        sum_over_ranks_(rows_TM)
        return rows_TM


class SharedExperts(Experts):
    """Some experts. A pair's output is the sum over ranks: one of them has its expert, and the others add zeros.

    Exact ranks sum pair by pair, which changes nothing. Fast ones sum what their experts add to a token.
    """

    def __init__(self, count: int, shard: Shard) -> None:
        super().__init__(shard.size(count, count))
        self._first, _ = shard.span(count, count)
        self._is_exact = shard.is_exact

    def places(self, experts_TC: torch.Tensor, live_T: torch.Tensor | None) -> torch.Tensor:
        are_here_TC = (experts_TC >= self._first) & (experts_TC < self._first + self.count)
        return super().places(torch.where(are_here_TC, experts_TC - self._first, self.count), live_T)

    def _summed(self, out_TCM: torch.Tensor, weights_TC: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        if self._is_exact:
            sum_over_ranks_(out_TCM)
            return super()._summed(out_TCM, weights_TC, dtype)
        sum_TM = super()._summed(out_TCM, weights_TC, dtype)
        sum_over_ranks_(sum_TM)
        return sum_TM
