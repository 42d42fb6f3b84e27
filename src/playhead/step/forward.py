"""One forward, from token ids to sampled tokens: a decoder over paged KV, as steps a runner can capture.

A forward begins with the pool's translation, which serves all layers. Attention is the one break: it norms and rotates
queries and keys, writes this step's keys and values, and attends (`ModelStep`). Sampling follows (`Forward`). A decode
graph samples and advances: it leaves its slots as the next step's inputs, so a batch that just goes on needs nothing
from the host. A step over tokens samples after its replay, for each request's last token.

Shapes: T tokens, M hidden, X = all heads of q, k and v, Y = all heads of the output, H heads, E head dim of v, N
requests of a step, V vocabulary, R rows of running requests, P pages per row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple
from weakref import WeakMethod

import torch

from playhead.attention.base import ROWS_SLOT, AttentionBackend, AttentionPlan, LayerAttention, NewTokens, Phase
from playhead.graph.breaks import BreakOp, RunBreak, Scope, Tensors, TensorSpec
from playhead.graph.capture import Inputs, StepFn
from playhead.graph.slots import Batch, FillContext
from playhead.graph.spec import OwnedMemory, RunAxis, StepSpec
from playhead.graph.split import CUT
from playhead.kernels.attention import left_width
from playhead.kernels.tokens import advance, newest_ids
from playhead.kv.geometry import KVDtype, KVGeometry, LayerKV
from playhead.kv.pool import ForwardTokens, MHAKVPool
from playhead.kv.swa_pool import SWAKVPool
from playhead.models.context import RowsRead
from playhead.models.decoder import Decoder
from playhead.models.spec import ModelSpec
from playhead.sampling_params import SamplingKind
from playhead.step.inputs import FULL_LOCS
from playhead.step.outbox import Outbox
from playhead.step.sampling import MASKS_SLOT, SampledTokens, SamplerRows, without_reports
from playhead.step.scores import logprobs_of
from playhead.step.shared_choice import choice_of

KVPool = MHAKVPool | SWAKVPool
Placeholder = Callable[[FillContext], Batch]

LOCS_SLOT = "out_cache_loc"
POSITIONS_SLOT = "positions"
LAST_TOKENS_SLOT = "last_token_index"
TOKEN_ROWS_SLOT = "token_rows"

REPORTED_AT_ONCE = 32  # prompt tokens: the ranking of 32 in a vocabulary of 262,144 takes 300 MB


def kv_geometry(spec: ModelSpec, *, page_size: int, dtype: torch.dtype) -> KVGeometry:
    """What the model's own layer list says about its KV."""
    kv_dtype = KVDtype(str(dtype).removeprefix("torch."))
    layers = [
        LayerKV(
            window=layer.attention.window,
            num_kv_heads=layer.attention.num_kv_heads,
            k_head_dim=layer.attention.k_head_dim,
            v_head_dim=layer.attention.v_head_dim,
            dtype=kv_dtype,
        )
        for layer in spec.layers
    ]
    return KVGeometry.of(layers, page_size)


def layer_attentions(decoder: Decoder, pool: KVPool) -> tuple[LayerAttention, ...]:
    """Every layer's attention with the memory its keys and values live in."""
    layers, sinks, merges = [], decoder.sinks, decoder.can_merge_attention
    for index, layer in enumerate(decoder.spec.layers):
        k_pages, v_pages = pool.get_kv_buffer(index)
        spec = layer.attention
        layers.append(
            LayerAttention(
                num_heads=spec.num_heads,
                num_kv_heads=spec.num_kv_heads,
                k_head_dim=spec.k_head_dim,
                v_head_dim=spec.v_head_dim,
                scale=spec.scale,
                k_cache_NSKD=k_pages,
                v_cache_NSKE=v_pages,
                kv_group=pool.layers_mapping[index][1],
                window=spec.window,
                softcap=spec.softcap,
                sinks_H=sinks[index],
                reader_merges=merges[index],
            )
        )
    return tuple(layers)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupPlan:
    """What one forward's layers of one KV group read: the backend's plan, and where the new tokens go."""

    attention: AttentionPlan
    new_locs_T: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelPlan:
    """What one forward's attention reads: a plan per KV group, and where the new tokens stand. All at fixed addresses.

    A window group's tables and locations are the pool's workspaces. The forward fills them before its first layer, so
    the plan may be made before that.
    """

    groups: tuple[GroupPlan, ...]
    positions_T: torch.Tensor
    num_tokens: int

    def tensors(self) -> tuple[torch.Tensor, ...]:
        by_group = ((*group.attention.tensors(), group.new_locs_T) for group in self.groups)
        return (self.positions_T, *chain.from_iterable(by_group))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScopedContext:
    """The decoder's view of one forward. Each layer has room for its projection, a break op and tensors that the
    attention backend prepared for it; all layers share `scope`.
    """

    scope: Scope
    rooms: tuple[TensorSpec, ...]
    breaks: tuple[BreakOp, ...]
    prepared: tuple[Tensors, ...]
    left: tuple[int, ...]
    live_T: torch.Tensor | None
    read: RowsRead | None

    def live_rows(self) -> torch.Tensor | None:
        return self.live_T

    def room(self, layer_index: int, h_TM: torch.Tensor) -> torch.Tensor:
        return self.scope.bridge(self.breaks[layer_index], 0, self.rooms[layer_index], h_TM)

    def attend(self, layer_index: int, qkv_TX: torch.Tensor) -> torch.Tensor:
        prepared = self.prepared[layer_index]
        (out_TY,) = self.scope.call(self.breaks[layer_index], qkv_TX, *prepared, site=layer_index)
        return out_TY

    def rows_read(self) -> RowsRead | None:
        return self.read

    def parts_left(self, layer_index: int) -> int:
        return self.left[layer_index]


class ModelStep:
    """One decoder, its KV pool and an attention backend. The seams `embed`, `layers`, `head` are the decoder's own."""

    def __init__(
        self, decoder: Decoder, pool: KVPool, layers: tuple[LayerAttention, ...], backend: AttentionBackend
    ) -> None:
        self.decoder, self.pool, self.layers, self.backend = decoder, pool, layers, backend
        self._widths = tuple(sum(layer.attention.qkv_sizes) for layer in decoder.spec.layers)
        self._transforms = decoder.transforms
        # A strong reference to the method would be a cycle, and all KV memory would wait for the garbage collector.
        run = weak_run(WeakMethod(self._attend))
        # The packed projection does not say what attention's output is like, so every kind has a break of its own.
        kinds = dict.fromkeys(kind_of(layer, left) for layer in layers for left in (0, backend.parts_left(layer, 1)))
        self._breaks = {kind: attention_break(run, *kind) for kind in kinds}

    @property
    def owned(self) -> tuple[OwnedMemory, ...]:
        """All memory a forward may touch besides its slots."""
        weights = (*self.decoder.parameters(), *self.decoder.buffers())
        return (
            OwnedMemory(name="weights", tensors=weights),
            *(self._kv(group, num_sink_pages) for group, num_sink_pages in enumerate(self.pool.num_sink_pages)),
            OwnedMemory(name="window mapping", tensors=self.pool.device_mappings),
            OwnedMemory(name="window locations", tensors=self.pool.workspaces, writable=True),
            *self.backend.owned(),
        )

    def _kv(self, group: int, num_sink_pages: int) -> OwnedMemory:
        layers = [layer for layer in self.layers if layer.kv_group == group]
        caches = tuple(cache for layer in layers for cache in (layer.k_cache_NSKD, layer.v_cache_NSKE))
        return OwnedMemory(name=f"kv of group {group}", tensors=caches, writable=True, sink_rows=num_sink_pages)

    def hidden(self, inputs: Inputs, scope: Scope, phase: Phase, read: RowsRead | None = None) -> torch.Tensor:
        """Embedding and layer stack: h_TM, as `head` wants it, or the rows of it that are read. Begins with the
        translation, for all layers.
        """
        scope.share_memory()  # a layer's projection and attention are read before the next layer
        forward = self.pool.begin_forward(self.tokens(inputs, phase), is_launched=True)
        num_tokens = inputs[LOCS_SLOT].shape[0]  # asked once: a capture watches each question to a tensor
        prepared: tuple[Tensors, ...] = ((),) * len(self.layers)
        left = (0,) * len(self.layers)
        if phase is Phase.DECODE:
            prepared = self.backend.prepare(self.layers, forward, inputs)
            left = tuple(self.backend.parts_left(layer, num_tokens) for layer in self.layers)
        live_T = inputs[LOCS_SLOT] != FULL_LOCS.sink if self.decoder.spec.has_experts else None
        breaks = tuple(self._breaks[kind_of(*one)] for one in zip(self.layers, left, strict=True))
        h_TM = self.decoder.embed(inputs["input_ids"])  # behind all that layers read without waiting for it
        dtype = h_TM.dtype
        rooms = tuple(TensorSpec(shape=(num_tokens, width), dtype=dtype) for width in self._widths)
        context = ScopedContext(
            scope=scope, rooms=rooms, breaks=breaks, prepared=prepared, left=left, live_T=live_T, read=read
        )
        return self.decoder.layers(h_TM, context)

    def tokens(self, inputs: Inputs, phase: Phase) -> ForwardTokens:
        """A forward's tokens, from slots that have a row per token: captured segments may read no others."""
        return ForwardTokens(
            page_table_RP=self.backend.page_table_RP,
            full_locs_T=inputs[LOCS_SLOT],
            rows_T=inputs[ROWS_SLOT if phase is Phase.DECODE else TOKEN_ROWS_SLOT],
            positions_T=inputs[POSITIONS_SLOT],
        )

    def spec(self, axis: RunAxis, fn: StepFn, placeholder: Placeholder, *, has_breaks: bool = False) -> StepSpec:
        """A step over requests or over tokens, built around `hidden`, as a runner captures it.

        With `has_breaks` attention runs live, over this step's tokens alone; else it is a part of the graph.
        """

        kept: dict[int, tuple[Inputs, ModelPlan]] = {}

        def plan(batch: Batch, ctx: FillContext, inputs: Inputs) -> ModelPlan:
            if has_breaks:
                return made_plan(ctx, inputs)
            # A whole graph's plan is views of its slots: the same at every step of its size, and dear to make.
            found = kept.get(ctx.padded_num_tokens)
            if found is None or found[0] is not inputs:
                found = kept[ctx.padded_num_tokens] = inputs, made_plan(ctx, inputs)
            return found[1]

        def made_plan(ctx: FillContext, inputs: Inputs) -> ModelPlan:
            attention = self.backend.plan(inputs, is_live=has_breaks)
            num_tokens = ctx.raw_num_tokens if has_breaks else ctx.padded_num_tokens
            forward = self.pool.forward_locs(attention.page_table_RP, inputs[LOCS_SLOT][:num_tokens])
            groups = tuple(
                GroupPlan(attention=replace(attention, page_table_RP=locs.table_RP), new_locs_T=locs.new_locs_T)
                for locs in forward.groups
            )
            return ModelPlan(groups=groups, positions_T=inputs[POSITIONS_SLOT][:num_tokens], num_tokens=num_tokens)

        return StepSpec(
            name="decode" if axis == "bs" else "prefill",
            axis=axis,
            fn=fn,
            plan=plan,
            placeholder=placeholder,
            owned=self.owned,
        )

    def _attend(self, plan: ModelPlan, inputs: Tensors, outputs: Tensors, layer_index: int) -> None:
        """Norms and rotates queries and keys, writes new keys and values, attends: for this step's tokens alone."""
        (qkv_TX, *prepared), (out_TY,) = inputs, outputs
        layer = self.layers[layer_index]
        group = plan.groups[layer.kv_group]
        if qkv_TX.shape[0] > plan.num_tokens:
            qkv_TX, out_TY = qkv_TX[: plan.num_tokens], out_TY[: plan.num_tokens]
        new = NewTokens(
            qkv_TX=qkv_TX,
            transform=self._transforms[layer_index],
            positions_T=plan.positions_T,
            locs_T=group.new_locs_T,
        )
        self.backend.write_and_attend(group.attention, layer, new, out_TY, tuple(prepared))


def weak_run(method: WeakMethod[RunBreak]) -> RunBreak:
    """The method's call, without holding the object whose method it is."""

    def run(live: Any, inputs: Tensors, outputs: Tensors, site: int) -> None:
        bound = method()
        assert bound is not None, "a step runs while its model is there"
        bound(live, inputs, outputs, site)

    return run


def kind_of(layer: LayerAttention, num_left: int) -> tuple[int, int]:
    """What tells attention's outputs apart: how wide they are, and in how many parts of each head they are left."""
    return left_width(layer.num_heads, layer.v_head_dim, num_left), num_left


def attention_break(run: RunBreak, width: int, num_left: int) -> BreakOp:
    """Attention from one packed projection to out_TY, Y being `width`; parts are float32."""

    def outputs(inputs: Tensors) -> list[TensorSpec]:
        dtype = torch.float32 if num_left else inputs[0].dtype
        return [TensorSpec(shape=(inputs[0].shape[0], width), dtype=dtype)]

    return BreakOp(f"playhead_step::attention_{width}", run=run, outputs=outputs)


class StepOutput(NamedTuple):
    """Logits of each request's last token, and what was drawn from them. Flat: a graph's outputs are tensors.

    A step that only chooses tokens may do so without logits (`Choice.sample_at_once`): then these have no columns.
    """

    logits_NV: torch.Tensor
    tokens_N: torch.Tensor
    logprob_ids_NL: torch.Tensor
    logprobs_NL: torch.Tensor
    ranks_NL: torch.Tensor

    @property
    def sampled(self) -> SampledTokens:
        return SampledTokens(*self[1:])


class Forward:
    """A model's steps, and each row's newest token, which steps hand on without the host."""

    def __init__(self, model: ModelStep, sampler: SamplerRows, page_table_RP: torch.Tensor) -> None:
        self.model, self.sampler = model, sampler
        self._page_table_RP = page_table_RP
        self._page_size = model.layers[0].page_size
        self.newest_R = torch.zeros(page_table_RP.shape[0], dtype=torch.int32, device=page_table_RP.device)
        # One for all steps of all sizes: with their own, 34 graphs of Gemma-3-1B kept 2.9 GB of them.
        max_running, num_ids = page_table_RP.shape[0] - 1, model.decoder.vocabulary.num_ids
        self._logits_RV = torch.zeros(
            (max_running, num_ids), dtype=model.decoder.logits_dtype, device=page_table_RP.device
        )
        self.outbox = Outbox(max_running, page_table_RP.device)
        self._logits_by_size: dict[int, torch.Tensor] = {}
        self._tokens_R = torch.zeros(max_running, dtype=torch.int64, device=page_table_RP.device)
        self._rooms_by_size: dict[int, SampledTokens] = {}
        self._choice = choice_of(model.decoder, max_running)

    def decode_spec(self, kind: SamplingKind, placeholder: Placeholder) -> StepSpec:
        """Embedding to tokens, and the inputs of the next step. A step with masks can be cut before it reads them."""

        def decode(inputs: Inputs, scope: Scope) -> StepOutput:
            rows_N = inputs["req_pool_indices"]
            h_NM, of_rows = self._hidden(inputs, scope, Phase.DECODE), self.sampler.inputs(inputs, rows_N)
            logits_NV = h_NM.new_empty((len(h_NM), 0))
            sampled = self._choice.sample_at_once(self.model.decoder, h_NM, of_rows, kind)
            if sampled is None:
                logits_NV = self._head(h_NM)
                if MASKS_SLOT in inputs:
                    scope.call(CUT, logits_NV, site=0)
                sampled = self._choice.sample(logits_NV, of_rows, kind)
            advance(
                sampled.tokens_N,
                inputs["input_ids"],
                inputs["positions"],
                inputs["seq_lens"],
                inputs["out_cache_loc"],
                inputs["num_generated"],
                inputs["boxes"],
                rows_N,
                inputs["num_token_non_padded"],
                self.newest_R,
                self.outbox.boxes_XR,
                self._page_table_RP,
                self._page_size,
            )
            return StepOutput(logits_NV, *sampled)

        spec = self.model.spec("bs", decode, placeholder)
        logits = OwnedMemory(name="logits", tensors=(self._logits_RV,), writable=True)
        outbox = OwnedMemory(name="outbox", tensors=(self.outbox.boxes_XR,), writable=True, sink_rows=1)
        owned = (*spec.owned, self._newest(writable=True), outbox, logits, *self._choice.owned, *self.sampler.owned)
        return replace(spec, name=f"decode, {kind.name.lower()}", owned=owned)

    def token_spec(self, placeholder: Placeholder, *, has_breaks: bool) -> StepSpec:
        """The layer stack over tokens, up to h_NM of each request's last token; `sample_last` does the rest.

        Nothing reads what the last layer makes of other tokens, so it is computed for as many rows as there may be
        requests: of 8,192 tokens of Llama-3.2-1B, 256. What is captured depends on the number of tokens alone, as ever.
        """
        most = len(self._logits_RV)

        def layer_stack(inputs: Inputs, scope: Scope) -> torch.Tensor:
            return self._hidden(inputs, scope, Phase.EXTEND, RowsRead(index_T=inputs[LAST_TOKENS_SLOT], most=most))

        spec = self.model.spec("tokens", layer_stack, placeholder, has_breaks=has_breaks)
        return replace(spec, output_axis="bs", owned=(*spec.owned, self._newest(writable=False)))

    def whole_token_spec(self, placeholder: Placeholder, *, has_breaks: bool) -> StepSpec:
        """The layer stack over tokens, up to h_TM of all tokens: for steps that report on prompts."""

        def layer_stack(inputs: Inputs, scope: Scope) -> torch.Tensor:
            return self._hidden(inputs, scope, Phase.EXTEND)

        spec = self.model.spec("tokens", layer_stack, placeholder, has_breaks=has_breaks)
        return replace(spec, name="prefill, whole", owned=(*spec.owned, self._newest(writable=False)))

    @torch.no_grad()
    def sample_last(self, h_NM: torch.Tensor, inputs: Inputs, kind: SamplingKind) -> StepOutput:
        """Logits and tokens of the requests of a step over tokens, from its slots."""
        rows_N = inputs["sampling_rows"]
        # A captured step has memory of its own. Here every view and every new tensor would be a call of torch.
        room, of_rows = self._room(len(rows_N)), self.sampler.inputs(inputs, rows_N)
        logits_NV = room.logprobs_NL  # of no columns
        sampled = self._choice.sample_at_once(self.model.decoder, h_NM, of_rows, kind, room)
        if sampled is None:
            logits_NV = self._head(h_NM, self.logits(len(rows_N)))
            sampled = self._choice.sample(logits_NV, of_rows, kind, room)
        self.newest_R.scatter_(0, rows_N, sampled.tokens_N.to(torch.int32))
        return StepOutput(logits_NV, *sampled)

    @torch.no_grad()
    def report_prompt(
        self, h_TM: torch.Tensor, index_T: torch.Tensor, tokens_T: torch.Tensor, num_best: int
    ) -> SampledTokens:
        """How likely each of these tokens was after the token of a step over tokens that stands at its index.

        Call it before `sample_last`: both keep their logits in the same memory.
        """
        num_rows = min(REPORTED_AT_ONCE, len(self._logits_RV))
        spans = [slice(start, start + num_rows) for start in range(0, len(tokens_T), num_rows)]
        heads = (self._choice.all_logits(self._head(h_TM.index_select(0, index_T[span]))) for span in spans)
        parts = [logprobs_of(logits, tokens_T[span], num_best) for logits, span in zip(heads, spans, strict=True)]
        return SampledTokens(tokens_T, *(torch.cat(columns) for columns in zip(*parts, strict=True)))

    def logits(self, num_requests: int) -> torch.Tensor:
        """Where the logits of a step of so many requests are. Making a view takes longer than finding it."""
        view = self._logits_by_size.get(num_requests)
        if view is None:
            view = self._logits_by_size[num_requests] = self._logits_RV[:num_requests]
        return view

    def _room(self, num_requests: int) -> SampledTokens:
        """Where the tokens of a step over tokens are, until the next such step."""
        room = self._rooms_by_size.get(num_requests)
        if room is None:
            room = self._rooms_by_size[num_requests] = without_reports(self._tokens_R[:num_requests])
        return room

    def _head(self, h_NM: torch.Tensor, logits_NV: torch.Tensor | None = None) -> torch.Tensor:
        """Logits where those of all steps are. A capture makes its own view: a kept one would change what it holds."""
        return self.model.decoder.head(h_NM, self._logits_RV[: h_NM.shape[0]] if logits_NV is None else logits_NV)

    def _hidden(self, inputs: Inputs, scope: Scope, phase: Phase, read: RowsRead | None = None) -> torch.Tensor:
        ids_T = newest_ids(inputs["input_ids"], self.newest_R)
        return self.model.hidden({**inputs, "input_ids": ids_T}, scope, phase, read)

    def _newest(self, *, writable: bool) -> OwnedMemory:
        return OwnedMemory(name="newest tokens", tensors=(self.newest_R,), writable=writable, sink_rows=1)
