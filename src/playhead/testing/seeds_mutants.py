"""Each requirement of `docs/seeds.md` removed, as a patch. The tests that its row names must fail."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib import import_module
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

import numpy as np
import torch

from playhead.graph import registry as registry_module
from playhead.graph import runner as runner_module
from playhead.graph.breakable import BreakableStep
from playhead.graph.breaks import InlineScope, Scope
from playhead.graph.capture import Inputs
from playhead.graph.copies import grouped_foreach_copy_
from playhead.graph.oplog import OpObserver
from playhead.graph.registry import CudaGraphBufferRegistry, DeviceEntry
from playhead.graph.runner import GraphRunner, PlanKey
from playhead.graph.sharing import InputBufferPool, SharedBuffer
from playhead.graph.slots import Batch, FillContext, GraphSlot, IndexSpace
from playhead.graph.spec import LivePlan, StepSpec
from playhead.kv.plan import KVPlan
from playhead.kv.pool import ForwardLocs, MHAKVPool
from playhead.kv.swa_pool import SWAKVPool
from playhead.kv.tables import FULL
from playhead.models import build
from playhead.models.families import FAMILIES
from playhead.models.family import Family
from playhead.step import registries
from playhead.step.forward import Forward, Placeholder
from playhead.testing.graph_mutants import (
    any_bind_accepted,
    device_tail_never_reset,
    moving_padding_accepted,
    one_step_audited,
    plan_made_at_capture_only,
    stale_tail,
)
from playhead.testing.mutant import Mutant, Patch, swapped
from playhead.testing.translation_mutants import (
    full_locations_in_windows,
    look_up_in_attention,
    memo_by_storage,
    memo_of_the_warm_up,
    translation_per_layer,
    unpublished_mapping_used,
)

GPU_CONTRACT = "tests.gpu.test_graph_contract"


# S0: window locations before capture.


def copied_one_by_one() -> Patch:
    def one_by_one(dsts: Sequence[torch.Tensor], srcs: Sequence[torch.Tensor]) -> int:
        for dst, src in zip(dsts, srcs, strict=True):
            dst.copy_(src)
        return len(dsts)

    return swapped(registry_module, "grouped_foreach_copy_", one_by_one)


def plain_pool_with_a_mapping() -> Patch:
    """A model without windows gets the mapping's memory too."""
    original = MHAKVPool.__init__
    mappings: WeakKeyDictionary[MHAKVPool, torch.Tensor] = WeakKeyDictionary()

    def with_mapping(self: MHAKVPool, plan: KVPlan, *, device: torch.device) -> None:
        original(self, plan, device=device)
        num_locs = plan.num_pages(FULL) * plan.geometry.page_size
        mappings[self] = torch.zeros(num_locs, dtype=torch.int32, device=device)

    return swapped(MHAKVPool, "__init__", with_mapping)


# S1: one registry.


def staged_tail_never_reset() -> Patch:
    def nothing(
        self: CudaGraphBufferRegistry, slot: GraphSlot, values: np.ndarray[Any, Any], raw: int, left: int
    ) -> None:
        return None

    return swapped(CudaGraphBufferRegistry, "_reset_staged_tail", nothing)


def any_declaration_taken() -> Patch:
    def nothing(self: GraphSlot) -> tuple[()]:
        return ()

    return swapped(GraphSlot, "_broken_rules", nothing)


def padding_after_copies() -> Patch:
    def fill_from(self: CudaGraphBufferRegistry, batch: Batch, ctx: FillContext) -> None:
        with swapped(CudaGraphBufferRegistry, "_reset_tail", lambda self, entry, ctx: None):
            original(self, batch, ctx)
        for entry in self._device:
            self._reset_tail(entry, ctx)

    original = CudaGraphBufferRegistry.fill_from
    return swapped(CudaGraphBufferRegistry, "fill_from", fill_from)


def nothing_shared() -> Patch:
    def alone(
        self: InputBufferPool, name: str, shape: tuple[int, ...], *, dtype: torch.dtype, device: torch.device
    ) -> tuple[torch.Tensor, SharedBuffer]:
        shared = SharedBuffer(torch.zeros(math.prod(shape), dtype=dtype, device=device))
        self._buffers[f"{name} {len(self._buffers)}", math.prod(shape), dtype, device] = shared
        return shared.flat.view(shape), shared

    return swapped(InputBufferPool, "share_input_buffer", alone)


def padded_tokens_counted() -> Patch:
    """`num_token_non_padded` counts the padding too."""
    original = registries.num_live_tokens

    def padded() -> GraphSlot:
        return replace(original(), source_fn=lambda batch, ctx: np.array([ctx.padded_num_tokens], dtype=np.int32))

    return swapped(registries, "num_live_tokens", padded)


def captured_on_copies() -> Patch:
    """Graphs read memory that no fill writes."""
    original = GraphRunner.graph_inputs

    def copies(self: GraphRunner, ctx: FillContext) -> dict[str, torch.Tensor]:
        return {name: view.clone() for name, view in original(self, ctx).items()}

    return swapped(GraphRunner, "graph_inputs", copies)


def copied_on_a_gpu_alone() -> Patch:
    def on_a_gpu(dsts: Sequence[torch.Tensor], srcs: Sequence[torch.Tensor]) -> int:
        return grouped_foreach_copy_(dsts, srcs) if dsts[0].is_cuda else 0

    return swapped(registry_module, "grouped_foreach_copy_", on_a_gpu)


@contextmanager
def untested_on_a_gpu() -> Iterator[None]:
    """The GPU suite loses a test of the runner contract."""
    module = vars(import_module(GPU_CONTRACT))
    with patch.dict(module):
        del module["test_audit_is_clean"]
        yield


def plan_type_forgotten() -> Patch:
    original = runner_module.plan_key

    def key(live: LivePlan | None) -> PlanKey:
        return object, original(live)[1]

    return swapped(runner_module, "plan_key", key)


def missing_source_kept() -> Patch:
    """A value that the batch lacks stays the last step's."""
    original = CudaGraphBufferRegistry._check_fill

    def tolerant(self: CudaGraphBufferRegistry, batch: Batch, ctx: FillContext) -> None:
        assert isinstance(batch, dict)
        for name in sorted(self._sources - batch.keys()):
            if name in self.slots:
                rows = self.slots[name].rows(0, ctx.raw(self.slots[name].axis))
                batch[name] = rows.numpy() if self.slots[name].staged else rows
        original(self, batch, ctx)

    return swapped(CudaGraphBufferRegistry, "_check_fill", tolerant)


# S2: padded rows.


def device_index_tail_stale() -> Patch:
    original = CudaGraphBufferRegistry._reset_tail

    def forgetful(self: CudaGraphBufferRegistry, entry: DeviceEntry, ctx: FillContext) -> None:
        if entry.slot.index is None:
            original(self, entry, ctx)

    return swapped(CudaGraphBufferRegistry, "_reset_tail", forgetful)


def any_index_taken() -> Patch:
    def nothing(self: GraphSlot, index: IndexSpace) -> tuple[()]:
        return ()

    return swapped(GraphSlot, "_broken_rules_of_indices", nothing)


# S3: translation belongs to the pool.


def versions_stand_still() -> Patch:
    """Every translation has the version of the mapping, however old it is."""
    original = SWAKVPool.set_kv_buffer

    def any_version(
        self: SWAKVPool, layer: int, locs: ForwardLocs | torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> None:
        current = replace(locs, version=self.mapping.version) if isinstance(locs, ForwardLocs) else locs
        original(self, layer, current, k, v)

    return swapped(SWAKVPool, "set_kv_buffer", any_version)


def minus_one_is_the_sink() -> Patch:
    original = SWAKVPool._begin_mappings

    def without_an_end(self: SWAKVPool) -> None:
        original(self)
        for mapping_L in self.device_mappings:
            mapping_L[-1] = 0

    return swapped(SWAKVPool, "_begin_mappings", without_an_end)


def plain_pool_translates() -> Patch:
    def copied(self: MHAKVPool, full_locs: torch.Tensor, window_group: int = 0) -> torch.Tensor:
        return full_locs.clone()

    return swapped(MHAKVPool, "translate_loc_from_full_to_swa", copied)


# S4: breakable graphs.


def requests_captured() -> Patch:
    """Captured work of a breakable graph gets the slots with a row per request."""

    def everything(self: GraphRunner, ctx: FillContext) -> Mapping[str, torch.Tensor]:
        return self.views(ctx)

    return swapped(GraphRunner, "graph_inputs", everything)


def logits_captured() -> Patch:
    original = Forward.token_spec

    def with_head(self: Forward, placeholder: Placeholder, *, has_breaks: bool) -> StepSpec:
        spec = original(self, placeholder, has_breaks=has_breaks)

        def hidden_and_logits(inputs: Inputs, scope: Scope) -> Any:
            h_TM = spec.fn(inputs, scope)
            self.model.decoder.head(h_TM)
            return h_TM

        return replace(spec, fn=hidden_and_logits)

    return swapped(Forward, "token_spec", with_head)


def gradients_in_breaks() -> Patch:
    def replay(self: BreakableStep, live: Any) -> None:
        first, *rest = self.recordings
        first.replay()
        for bound, segment in zip(self.breaks, rest, strict=True):
            bound.op.run(live, bound.inputs, bound.outputs, bound.site)
            segment.replay()

    return swapped(BreakableStep, "replay", replay)


def gradients_in_eager_steps() -> Patch:
    def run_eager(self: GraphRunner, ctx: FillContext, live: LivePlan | None, *, prepared: bool = False) -> Any:
        inputs = self.graph_inputs(ctx)
        fn = self.capture.prepare(self.step.fn, inputs) if prepared else self.step.fn
        return fn(inputs, InlineScope(live))

    return swapped(GraphRunner, "run_eager", run_eager)


def gradients_in_logits() -> Patch:
    return swapped(Forward, "sample_last", inspect.unwrap(Forward.sample_last))


def gradients_in_recordings() -> Patch:
    @contextmanager
    def watching(self: OpObserver) -> Iterator[OpObserver]:
        with ExitStack() as stack:
            stack.enter_context(self._guard)
            stack.enter_context(self)
            yield self

    return swapped(OpObserver, "watching", watching)


def unknown_model_taken_for_llama() -> Patch:
    original = build.family_named

    def guessed(model_type: object) -> Family:
        known = {family.model_type for family in FAMILIES}
        return original(model_type if model_type in known else "llama")

    return swapped(build, "family_named", guessed)


def tensors_kept_per_batch_size() -> Patch:
    original = GraphRunner.prepare
    kept: WeakKeyDictionary[GraphRunner, dict[int, list[torch.Tensor]]] = WeakKeyDictionary()

    def prepare(self: GraphRunner, batch: Batch, ctx: FillContext) -> LivePlan | None:
        live = original(self, batch, ctx)
        kept.setdefault(self, {})[ctx.raw_bs] = [view.clone() for view in self.views(ctx).values()]
        return live

    return swapped(GraphRunner, "prepare", prepare)


# Some removals are mutants of other packages, too.
REMOVALS: tuple[tuple[str, str, Mutant | Callable[[], Patch]], ...] = (
    ("S0.1", "translation in every layer", translation_per_layer),
    ("S0.2", "a plain pool has a mapping", plain_pool_with_a_mapping),
    ("S0.3", "copies go one by one", copied_one_by_one),
    ("S0.4", "look-ups per layer in the graph", translation_per_layer),
    ("S0.4", "look-ups per layer between the graph's segments", look_up_in_attention),
    ("S1.1", "the tail of a device slot is kept", device_tail_never_reset),
    ("S1.1", "the tail of a staged slot is kept", staged_tail_never_reset),
    ("S1.1", "any axis and policy is taken", any_declaration_taken),
    ("S1.2", "any tensor may be bound", any_bind_accepted),
    ("S1.3", "padding after copies", padding_after_copies),
    ("S1.4", "equal buffers are not shared", nothing_shared),
    ("S1.5", "padded tokens are counted", padded_tokens_counted),
    ("S1.6", "graphs captured on copies", captured_on_copies),
    ("S1.7", "logic that needs a GPU", copied_on_a_gpu_alone),
    ("S1.7", "a contract that no GPU runs", untested_on_a_gpu),
    ("S1.8", "metadata prepared at capture only", plan_made_at_capture_only),
    ("S1.8", "the plan's type is forgotten", plan_type_forgotten),
    ("S1.9", "a missing source keeps the last value", missing_source_kept),
    ("S1.9", "a tail without a claim", any_declaration_taken),
    ("S2.1", "stale location tail, staged", stale_tail("out_cache_loc")),
    ("S2.1", "stale location tail, on the device", device_index_tail_stale),
    ("S2.1", "padding that a graph may move", moving_padding_accepted),
    ("S2.1", "consecutive steps are not audited", one_step_audited),
    ("S2.2", "an index of any dtype", any_index_taken),
    ("S3.1", "window layers at full locations", full_locations_in_windows),
    ("S3.2", "translation in every layer", translation_per_layer),
    ("S3.3", "memo keyed by the storage's base", memo_by_storage),
    ("S3.4", "an unpublished mapping is used", unpublished_mapping_used),
    ("S3.4", "an old translation is used", versions_stand_still),
    ("S3.5", "a warm-up's translation is remembered", memo_of_the_warm_up),
    ("S3.6", "-1 is the sink", minus_one_is_the_sink),
    ("S3.6", "a plain pool translates", plain_pool_translates),
    ("S3.7", "memo keyed by address", memo_of_the_warm_up),
    ("S4.1", "rows per request are captured", requests_captured),
    ("S4.1", "logits are captured", logits_captured),
    ("S4.2", "one placeholder's plan for all", plan_made_at_capture_only),
    ("S4.3", "gradients in replayed breaks", gradients_in_breaks),
    ("S4.3", "gradients in eager steps", gradients_in_eager_steps),
    ("S4.3", "gradients in logits", gradients_in_logits),
    ("S4.3", "gradients in recordings", gradients_in_recordings),
    ("S4.4", "an unknown model is taken for a llama", unknown_model_taken_for_llama),
    ("S4.5", "tensors kept per batch size", tensors_kept_per_batch_size),
)

# The changes that the requirements were learned from.
SOURCES = {
    "S0": "SGLang #23552: locations before capture",
    "S1": "SGLang #26742: one registry",
    "S2": "the regression that SGLang #23552 caused",
    "S3": "SGLang #25824: translation in the pool",
    "S4": "SGLang #24662: breakable graphs",
}

SEEDS_MUTANTS: tuple[Mutant, ...] = tuple(
    Mutant(
        name=f"{requirement}: {name}",
        source=SOURCES[requirement.partition(".")[0]],
        apply=removal.apply if isinstance(removal, Mutant) else removal,
        killed_by=(requirement,),
    )
    for requirement, name, removal in REMOVALS
)
