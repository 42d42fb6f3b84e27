"""The contract of attention: what a step must say, what a layer is, and what a backend does with both.

A step's inputs are slots (`step/inputs.py`), so no backend keeps buffers of its own: rows and lengths, and in a step
over tokens where each request's queries are. `plan` turns them into a value; the same code plans for eager runs,
capture and replay. The value holds nothing but tensors at fixed addresses, which is what a captured graph may read.

Shapes: T tokens, B requests, H query heads, K kv heads, D head dim of q and k, E head dim of v, R rows of the page
table, P pages per row, N pages of a layer's pool, S locations per page, J keys a layer can see.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

import torch

from playhead.errors import ConfigError
from playhead.graph.capture import Inputs
from playhead.graph.runner import OwnedMemory
from playhead.graph.slots import Batch, FillContext
from playhead.kernels.decode_rows import row_view
from playhead.kernels.extend_rows import EqualSpans
from playhead.kv.pool import GroupLocs

# Slots every step has. A padded request is row 0 (no page but the sink) with one key.
ROWS_SLOT = "req_pool_indices"
LENGTHS_SLOT = "seq_lens"

# A padded request of an extend step starts past every token. 0 would make it own the first tokens; a number this far
# out owns none, and half of int32 leaves room for the kernels' sums.
PAST_EVERY_TOKEN = 2**30


class Phase(Enum):
    """What a step's queries are: one per request at its end, or any number of them."""

    DECODE = "decode"
    EXTEND = "extend"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # tensors have no useful equality
class LayerAttention:
    """One layer's attention: its numbers, and the memory its keys and values live in.

    `window` counts the keys a query sees, itself included. The caches may be strided, with contiguous rows.
    """

    num_heads: int
    num_kv_heads: int
    k_head_dim: int
    v_head_dim: int
    scale: float
    k_cache_NSKD: torch.Tensor
    v_cache_NSKE: torch.Tensor
    window: int | None = None
    softcap: float | None = None
    sinks_H: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"LayerAttention: found {self.num_heads} heads for {self.num_kv_heads} kv heads; "
                "wanted a whole number of query heads per kv head. Read both from the model's config"
            )
        if self.window is not None and self.window < 1:
            raise ConfigError(
                f"LayerAttention.window: found {self.window}; wanted at least 1, the query itself. Use None for none"
            )
        for name, cache, dim in (
            ("k_cache_NSKD", self.k_cache_NSKD, self.k_head_dim),
            ("v_cache_NSKE", self.v_cache_NSKE, self.v_head_dim),
        ):
            wanted = (self.k_cache_NSKD.shape[0], self.page_size, self.num_kv_heads, dim)
            if tuple(cache.shape) != wanted or cache.stride(-1) != 1:
                raise ConfigError(
                    f"LayerAttention.{name}: found shape {tuple(cache.shape)}, last stride {cache.stride(-1)}; "
                    f"wanted {wanted} with stride 1. Take the view from the layer's KV pool"
                )

    @property
    def page_size(self) -> int:
        return self.k_cache_NSKD.shape[1]

    @property
    def group(self) -> tuple[object, ...]:
        """Equal for layers whose keys lie at the same places of their memory: a step looks these up once for all.

        Layers with one window have one page table, so the window names the table too.
        """
        return self.window, tuple(self.k_cache_NSKD.shape), self.k_cache_NSKD.stride()

    def as_rows(self) -> LayerAttention | None:
        """The layer over memory of one location per page, addressed by row; None where keys and values do not line up.

        Rows are what a `Lookup` holds.
        """
        k_rows, v_rows = row_view(self.k_cache_NSKD), row_view(self.v_cache_NSKE)
        if k_rows is None or v_rows is None or k_rows.shape != v_rows.shape:
            return None
        return replace(self, k_cache_NSKD=k_rows, v_cache_NSKE=v_rows)

    @property
    def group_size(self) -> int:
        """Query heads per kv head."""
        return self.num_heads // self.num_kv_heads


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionPlan:
    """What one step's attention reads beside its layers. Every layer of a KV group is given the same plan.

    `page_table_RP` is the group's own. A window group's holds the pages that this step's queries see, and leftovers.
    `seq_lens_B` counts a request's keys with this step's. In an extend step request b's queries are the tokens
    [query_starts[b], query_starts[b] + query_lens[b]); in a decode step both are None and query b is request b's.
    `spans` is what the layers of an extend step that runs live share, by `LayerAttention.group`: the first layer of a
    group fills it in. None where a graph holds the attention: what is found for one step must not be baked in.
    """

    page_table_RP: torch.Tensor
    rows_B: torch.Tensor
    seq_lens_B: torch.Tensor
    query_starts_B: torch.Tensor | None = None
    query_lens_B: torch.Tensor | None = None
    spans: dict[tuple[object, ...], tuple[EqualSpans, ...]] | None = None

    @property
    def phase(self) -> Phase:
        return Phase.DECODE if self.query_lens_B is None else Phase.EXTEND

    def tensors(self) -> tuple[torch.Tensor, ...]:
        found = (self.page_table_RP, self.rows_B, self.seq_lens_B, self.query_starts_B, self.query_lens_B)
        return tuple(tensor for tensor in found if tensor is not None)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lookup:
    """Where a decode step's keys lie in one group's memory, and where its new ones go: `kernels.decode_rows.key_rows`.

    Made from slots by the forward that uses it, and never kept.
    """

    key_rows_BJ: torch.Tensor
    bias_BJ: torch.Tensor
    new_rows_B: torch.Tensor


class AttentionBackend(Protocol):
    """How attention is computed. Backends hold no per-step state: everything of a step is in its plan."""

    page_table_RP: torch.Tensor
    """The table of full pages, at an address that never changes."""
    seq_len_fill_value: int
    """The length that padded requests must have: the least this backend computes without dividing by nothing."""

    @property
    def name(self) -> str: ...

    def owned(self) -> tuple[OwnedMemory, ...]:
        """Memory that captured work of this backend touches beside slots, weights and KV."""

    def plan(self, batch: Batch, ctx: FillContext, inputs: Inputs) -> AttentionPlan:
        """The step's plan for layers without a window, from slots that are filled already."""

    def lookup(self, layer: LayerAttention, locs: GroupLocs, inputs: Inputs) -> Lookup | None:
        """What the layers of this layer's group share in a decode step. Can be captured. None: each finds it alone."""

    def decode(
        self,
        plan: AttentionPlan,
        layer: LayerAttention,
        q_BHD: torch.Tensor,
        out_BHE: torch.Tensor,
        lookup: Lookup | None = None,
    ) -> None:
        """Writes every row of `out_BHE`. Can be captured. With a lookup, the layer comes `as_rows`."""

    def extend(self, plan: AttentionPlan, layer: LayerAttention, q_THD: torch.Tensor, out_THE: torch.Tensor) -> None:
        """Writes the rows of `out_THE` that belong to requests; the keys of these tokens are in the cache already."""


def attend(
    backend: AttentionBackend,
    plan: AttentionPlan,
    layer: LayerAttention,
    q: torch.Tensor,
    out: torch.Tensor,
    lookup: Lookup | None = None,
) -> None:
    """Attention of one layer, whichever phase the plan is of."""
    if plan.phase is Phase.DECODE:
        backend.decode(plan, layer, q, out, lookup)
    else:
        backend.extend(plan, layer, q, out)


def plan_from_slots(page_table_RP: torch.Tensor, inputs: Inputs) -> AttentionPlan:
    """The plan of a step: views of its slots, at fixed addresses, and nothing else."""
    return AttentionPlan(
        page_table_RP=page_table_RP,
        rows_B=inputs[ROWS_SLOT],
        seq_lens_B=inputs[LENGTHS_SLOT],
        query_starts_B=inputs.get("query_starts"),
        query_lens_B=inputs.get("query_lens"),
    )


ExtendArguments = tuple[
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor | None,
    float,
    int | None,
    float | None,
]


def extend_arguments(plan: AttentionPlan, layer: LayerAttention) -> ExtendArguments:
    """What the extend op and its reference take after q and out, in their order."""
    assert plan.query_starts_B is not None, "an extend plan"
    assert plan.query_lens_B is not None, "an extend plan"
    memory = (layer.k_cache_NSKD, layer.v_cache_NSKE, plan.page_table_RP)
    requests = (plan.rows_B, plan.seq_lens_B, plan.query_starts_B, plan.query_lens_B)
    return (*memory, *requests, layer.sinks_H, layer.scale, layer.window, layer.softcap)
