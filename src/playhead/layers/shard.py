"""How ranks share a model: which heads, columns and token ids each of them has. No torch.

Both modes split attention by heads, feed-forward blocks by hidden columns and the vocabulary by ids. They differ in the
projections back to the residual:

    fast     each rank multiplies its inputs, and the products are summed over ranks: one rank alone rounds differently
    exact    inputs are gathered, each rank makes some of the outputs, and outputs are gathered: the same bits
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from playhead.layers.spec import AttentionSpec
from playhead.types import TPMode

LANES = 32
"""A share begins at a multiple of this. Matmuls and activations of a CPU take so many columns at once, and round a
remainder differently. So a column has the same bits on its rank as it has on one rank alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One rank's part of a model. Whatever has units that stay whole, such as heads, is divided by those.

    >>> Shard(rank=1, num_ranks=4).span(224), Shard(rank=3, num_ranks=4).span(224)
    ((64, 128), (192, 224))
    >>> Shard(rank=1, num_ranks=4).span(256, num_units=2)  # two heads of 128: ranks 0 and 1 have the first
    (0, 128)
    """

    rank: int = 0
    num_ranks: int = 1
    mode: TPMode = TPMode.FAST
    is_grouped: bool = False
    """Whether there is a group of ranks to meet; a single rank may be one too."""

    @property
    def is_exact(self) -> bool:
        return self.mode is TPMode.EXACT

    def num_holders(self, num_units: int) -> int:
        """Into how many parts so many units are divided. With fewer units than ranks, some ranks have the same."""
        return min(self.num_ranks, num_units)

    def num_copies(self, num_units: int) -> int:
        """How many ranks after each other have the same units."""
        return self.num_ranks // self.num_holders(num_units)

    def share(self, count: int) -> int:
        """The most that a rank has of `count` columns."""
        even = -(-count // self.num_ranks)
        return min(-(-even // LANES) * LANES, count)

    def span(self, count: int, num_units: int | None = None) -> tuple[int, int]:
        """The first and the end of what this rank has of `count` columns, which belong to so many units."""
        if num_units is not None:
            num_holders = self.num_holders(num_units)
            at, size = self.rank * num_holders // self.num_ranks, count // num_holders
            return at * size, (at + 1) * size
        share = self.share(count)
        return min(self.rank * share, count), min((self.rank + 1) * share, count)

    def query_units(self, attention: AttentionSpec) -> int:
        """What query heads are divided by. Exact ranks keep the heads of a KV head together.

        A CPU multiplies all of them by the KV head's keys at once, and a product with fewer heads rounds differently.
        """
        return attention.num_kv_heads if self.is_exact else attention.num_heads

    def attention(self, whole: AttentionSpec) -> AttentionSpec:
        """This rank's heads of a layer."""
        num_heads = self.size(whole.num_heads, self.query_units(whole))
        return replace(whole, num_heads=num_heads, num_kv_heads=self.size(whole.num_kv_heads, whole.num_kv_heads))

    def size(self, count: int, num_units: int | None = None) -> int:
        """How many this rank has of `count` columns."""
        first, end = self.span(count, num_units)
        return end - first


WHOLE = Shard()
"""A model on one rank, which meets no others."""
