"""The contract of attention: what a step must say, what a layer is, and what a backend does with both.

A step's inputs are slots (`step/inputs.py`), so no backend keeps buffers of its own: rows and lengths, and in a step
over tokens where each request's queries are. `plan` turns them into a value; the same code plans for eager runs,
capture and replay. The value holds tensors at fixed addresses, which is what a captured graph may read.

Shapes: T tokens, B requests, X = all heads of q, k and v, Y = all heads of the output, H query heads, K kv heads, D
head dim of q and k, E head dim of v, R rows of the page table, P pages per row, N pages of a layer's pool, S locations
per page.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

from torch import Tensor

from playhead.errors import ConfigError
from playhead.graph.breaks import Tensors
from playhead.graph.capture import Inputs
from playhead.graph.spec import OwnedMemory
from playhead.kernels.rope import qk_rope_write, split_heads
from playhead.kv.pool import ForwardLocs

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

    `window` counts the keys a query sees, itself included. The caches may be strided, with contiguous heads. Layers of
    one `kv_group` have their keys at the same places of their memory, and one page table. With `reader_merges` what
    reads the output can merge it from parts.
    """

    num_heads: int
    num_kv_heads: int
    k_head_dim: int
    v_head_dim: int
    scale: float
    k_cache_NSKD: Tensor
    v_cache_NSKE: Tensor
    kv_group: int = 0
    window: int | None = None
    softcap: float | None = None
    sinks_H: Tensor | None = None
    reader_merges: bool = False

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
    def group_size(self) -> int:
        """Query heads per kv head."""
        return self.num_heads // self.num_kv_heads


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionPlan:
    """What one step's attention reads beside its layers. Every layer of a KV group is given the same plan.

    `page_table_RP` is the group's own. A window group's holds the pages that this step's queries see, and leftovers.
    `seq_lens_B` counts a request's keys with this step's. In an extend step request b's queries are the tokens
    [query_starts[b], query_starts[b] + query_lens[b]); in a decode step both are None and query b is request b's.
    `notes` is the backend's own, for what layers of a step share when attention runs live. None where a graph holds
    the attention: what is found for one step must not be baked in.
    """

    page_table_RP: Tensor
    rows_B: Tensor
    seq_lens_B: Tensor
    query_starts_B: Tensor | None = None
    query_lens_B: Tensor | None = None
    notes: dict[int, Any] | None = None

    @property
    def phase(self) -> Phase:
        return Phase.DECODE if self.query_lens_B is None else Phase.EXTEND

    def tensors(self) -> tuple[Tensor, ...]:
        found = (self.page_table_RP, self.rows_B, self.seq_lens_B, self.query_starts_B, self.query_lens_B)
        return tuple(tensor for tensor in found if tensor is not None)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QKTransform:
    """What queries and keys go through between projection and attention, as `qk_rope_write` takes it.

    `tensors` are the norms' weights for q and for k (None: no norm) and the table of rotations (None: no rotation),
    `numbers` the norms' eps, whether they add 1 to their weights, and whether the rotated pairs interleave.
    """

    tensors: tuple[Tensor | None, Tensor | None, Tensor | None]
    numbers: tuple[float, bool, bool]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NewTokens:
    """A step's tokens as one layer's projection leaves them, packed, and where they go in the memory of its group."""

    qkv_TX: Tensor
    transform: QKTransform
    positions_T: Tensor
    locs_T: Tensor


class AttentionBackend(ABC):
    """How attention is computed. Backends hold no per-step state: everything of a step is in its plan, or handed on.

    `page_table_RP` is the table of full pages, at an address that never changes.
    """

    name: ClassVar[str]
    seq_len_fill_value: ClassVar[int] = 1
    """The length that padded requests must have: a softmax over no keys has no value."""

    def __init__(self, page_table_RP: Tensor) -> None:
        self.page_table_RP = page_table_RP

    def owned(self) -> tuple[OwnedMemory, ...]:
        """Memory that captured work of this backend touches beside slots, weights and KV."""
        return (OwnedMemory(name="page table", tensors=(self.page_table_RP,)),)

    def plan(self, inputs: Inputs, *, is_live: bool = False) -> AttentionPlan:
        """The step's plan for layers without a window, from slots that are filled already: views of them.

        With `is_live` attention runs between segments of a graph, or eager.
        """
        return AttentionPlan(
            page_table_RP=self.page_table_RP,
            rows_B=inputs[ROWS_SLOT],
            seq_lens_B=inputs[LENGTHS_SLOT],
            query_starts_B=inputs.get("query_starts"),
            query_lens_B=inputs.get("query_lens"),
            notes={} if is_live else None,
        )

    def prepare(self, layers: tuple[LayerAttention, ...], locs: ForwardLocs, inputs: Inputs) -> tuple[Tensors, ...]:
        """For each layer of a decode step, tensors that its `write_target` and `decode` are handed: made at the start
        of the forward, and captured with it. Here none.
        """
        return ((),) * len(layers)

    def kind_of_step(self, num_requests: int) -> Hashable:
        """Two decode steps that differ in this launch different kernels, even if their numbers of requests are close.
        None: they do not.
        """
        return None

    def parts_left(self, layer: LayerAttention, num_requests: int) -> int:
        """In how many parts `write_and_attend` leaves each head's output in a decode step; 0: it is merged."""
        return 0

    def write_target(self, layer: LayerAttention, locs_T: Tensor, prepared: Tensors) -> tuple[Tensor, Tensor, Tensor]:
        """Where the step's new keys and values go: memory of keys, of values, and a location in both for each token.

        `locs_T` are the tokens' locations in the layer's group. Here the layer's own caches and these.
        """
        return layer.k_cache_NSKD, layer.v_cache_NSKE, locs_T

    def write_and_attend(
        self, plan: AttentionPlan, layer: LayerAttention, new: NewTokens, out_TY: Tensor, prepared: Tensors
    ) -> None:
        """Norms and rotates queries and keys, writes new keys and values, attends. May overwrite the projection.

        `out_TY` is as wide as `kernels.attention.left_width` says for the parts that are left.
        """
        transform = new.transform
        q_THD, k_TKD, v_TKE = split_heads(new.qkv_TX, layer.num_kv_heads, layer.k_head_dim, layer.v_head_dim)
        target = self.write_target(layer, new.locs_T, prepared)
        qk_rope_write(q_THD, k_TKD, v_TKE, *transform.tensors, new.positions_T, *target, *transform.numbers)
        self.attend(plan, layer, q_THD, out_TY.view(-1, layer.num_heads, layer.v_head_dim), prepared)

    def attend(
        self, plan: AttentionPlan, layer: LayerAttention, q: Tensor, out: Tensor, prepared: Tensors = ()
    ) -> None:
        """Attention of one layer, whichever phase the plan is of."""
        if plan.phase is Phase.DECODE:
            self.decode(plan, layer, q, out, prepared)
        else:
            self.extend(plan, layer, q, out)

    @abstractmethod
    def decode(
        self, plan: AttentionPlan, layer: LayerAttention, q_BHD: Tensor, out_BHE: Tensor, prepared: Tensors = ()
    ) -> None:
        """Writes every row of `out_BHE`. Can be captured."""

    @abstractmethod
    def extend(self, plan: AttentionPlan, layer: LayerAttention, q_THD: Tensor, out_THE: Tensor) -> None:
        """Writes the rows of `out_THE` that belong to requests; the keys of these tokens are in the cache already."""


DecodeArguments = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None, float, int | None, float | None]


def decode_arguments(plan: AttentionPlan, layer: LayerAttention) -> DecodeArguments:
    """What `kernels.attention.decode` takes after q and out, in its order."""
    memory = (layer.k_cache_NSKD, layer.v_cache_NSKE, plan.page_table_RP)
    return (*memory, plan.rows_B, plan.seq_lens_B, layer.sinks_H, layer.scale, layer.window, layer.softcap)


def extend_arguments(plan: AttentionPlan, layer: LayerAttention) -> tuple[*DecodeArguments, Tensor, Tensor]:
    """What `kernels.attention.extend` takes after q and out: the same, and which queries are whose."""
    assert plan.query_starts_B is not None, "an extend plan"
    assert plan.query_lens_B is not None, "an extend plan"
    return (*decode_arguments(plan, layer), plan.query_starts_B, plan.query_lens_B)
