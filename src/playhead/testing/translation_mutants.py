"""Known bugs of the translation from full to window locations, as patches of what the engine's forwards call."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace

import numpy as np
import torch

from playhead.attention.base import Phase
from playhead.graph.breaks import BreakOp, Scope, Tensors, TensorSpec
from playhead.graph.capture import Inputs
from playhead.kernels.cpu import rope
from playhead.kernels.cpu.arrays import Array
from playhead.kv.pool import ForwardLocs, ForwardTokens
from playhead.kv.swa_pool import SWAKVPool
from playhead.kv.tables import FULL, WindowMapping
from playhead.models.context import RowsRead
from playhead.step.forward import ModelPlan, ModelStep
from playhead.testing.mutant import Mutant, Patch, mutant, swapped


def remembered(key_of: Callable[[SWAKVPool, torch.Tensor], Hashable]) -> Patch:
    """A forward whose tokens have the key of an earlier one is given that one's translation."""
    begin = SWAKVPool.begin_forward
    memo: dict[Hashable, ForwardLocs] = {}

    def memoised(self: SWAKVPool, tokens: ForwardTokens, *, is_launched: bool = False) -> ForwardLocs:
        key = key_of(self, tokens.full_locs_T)
        if key not in memo:
            memo[key] = begin(self, tokens, is_launched=is_launched)
        return memo[key]

    return swapped(SWAKVPool, "begin_forward", memoised)


def address(locs: torch.Tensor) -> tuple[int, int, int]:
    """Where a tensor lies, and its length. A recorder allows to ask its storage, and not the tensor itself."""
    return locs.untyped_storage().data_ptr(), int(locs.storage_offset()), locs.shape[0]


@mutant("memo not invalidated", source="S3.7: SGLang #25824", killed_by=("steps of one size",))
def memo_not_invalidated() -> Patch:
    """A translation is remembered by address: a slot refilled in place finds the last step's."""
    return remembered(lambda pool, locs: address(locs))


@mutant("memo of the warm-up", source="S3.5: SGLang #25824", killed_by=("one translation in the engine's graphs",))
def memo_of_the_warm_up() -> Patch:
    """A translation is remembered by address and version. The warm-up's is found by the capture, which skips the op."""
    return remembered(lambda pool, locs: (*address(locs), pool.mapping.version))


@mutant("memo keyed by the storage's base", source="S3.3: SGLang #25824", killed_by=("views of one storage",))
def memo_by_storage() -> Patch:
    """A translation is remembered by the storage's base, so views at different offsets are taken for each other."""
    return remembered(lambda pool, locs: (locs.untyped_storage().data_ptr(), locs.shape[0], pool.mapping.version))


class TranslatingScope:
    """A scope that translates before every layer's attention."""

    def __init__(self, scope: Scope, translate: Callable[[], object]) -> None:
        self._scope, self._translate = scope, translate

    def call(self, op: BreakOp, *inputs: torch.Tensor, site: int) -> Tensors:
        self._translate()
        return self._scope.call(op, *inputs, site=site)

    def share_memory(self) -> None:
        self._scope.share_memory()

    def bridge(self, op: BreakOp, position: int, spec: TensorSpec, like: torch.Tensor) -> torch.Tensor:
        return self._scope.bridge(op, position, spec, like)


@mutant(
    "translation in every layer",
    source="S0.1: before SGLang #23552",
    killed_by=("one translation in the engine's graphs",),
)
def translation_per_layer() -> Patch:
    """Every layer translates again, instead of using what the forward began with."""
    hidden = ModelStep.hidden

    def again(
        self: ModelStep, inputs: Inputs, scope: Scope, phase: Phase, read: RowsRead | None = None
    ) -> torch.Tensor:
        def translate() -> ForwardLocs:
            return self.pool.begin_forward(self.tokens(inputs, phase), is_launched=True)

        return hidden(self, inputs, TranslatingScope(scope, translate), phase, read)

    return swapped(ModelStep, "hidden", again)


@mutant(
    "look-up inside attention", source="S0.4: how our own engine did it", killed_by=("live layers without a mapping",)
)
def look_up_in_attention() -> Patch:
    """Attention looks its new locations up in the mapping, layer by layer, where no op log of a graph shows it."""
    attend = ModelStep._attend

    def alone(self: ModelStep, plan: ModelPlan, inputs: Tensors, outputs: Tensors, layer_index: int) -> None:
        full, *windows = plan.groups
        looked_up = [
            replace(group, new_locs_T=mapping_L[full.new_locs_T.long()])
            for group, mapping_L in zip(windows, self.pool.device_mappings, strict=True)
        ]
        attend(self, replace(plan, groups=(full, *looked_up)), inputs, outputs, layer_index)

    return swapped(ModelStep, "_attend", alone)


@mutant("mapping used before it is published", source="S3.4", killed_by=("publication before a step",))
def unpublished_mapping_used() -> Patch:
    """Nobody notices that the device's mapping is behind."""

    def silent(self: WindowMapping, where: str, *, pairs_only: bool = False) -> None:
        return None

    return swapped(WindowMapping, "require_published", silent)


@mutant(
    "window layers at full locations", source="S3.1: a translation that is not used", killed_by=("steps of one size",)
)
def full_locations_in_windows() -> Patch:
    """A window layer is given the full group's table and locations."""

    def as_full(self: SWAKVPool, page_table_RP: torch.Tensor, full_locs_T: torch.Tensor) -> ForwardLocs:
        forward = original(self, page_table_RP, full_locs_T)
        return replace(forward, groups=(forward.groups[FULL],) * len(forward.groups))

    original = SWAKVPool.forward_locs
    return swapped(SWAKVPool, "forward_locs", as_full)


@mutant("location -1 written into the last page", source="S3.6", killed_by=("nobody's token",))
def minus_one_wraps() -> Patch:
    """A location of -1 is written at the end of the last page."""

    def unclamped(locs: Array, *caches_rows: tuple[Array, Array]) -> None:
        live = np.flatnonzero(locs)
        for cache, rows in caches_rows:
            cache[locs[live] // cache.shape[1], locs[live] % cache.shape[1]] = rows[live]

    return swapped(rope, "write_rows", unclamped)


TRANSLATION_MUTANTS: tuple[Mutant, ...] = (
    memo_not_invalidated,
    memo_of_the_warm_up,
    memo_by_storage,
    translation_per_layer,
    look_up_in_attention,
    unpublished_mapping_used,
    full_locations_in_windows,
    minus_one_wraps,
)
