"""Runs steps of one model: fills the graphs' inputs, replays, gives tokens.

One worker owns the KV cache, the pool, the page table and its runners: decode over requests, prefill over tokens. A
step goes to decode when every request has one token, else to prefill; both go through the same memory. A step is
launched and later collected; the next may be launched before that, because what it needs of the last is on the device.

Shapes: N requests of a step, T tokens of a step, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch

from playhead.attention.base import AttentionBackend, LayerAttention, Phase
from playhead.attention.cpu import CpuBackend
from playhead.attention.triton import TritonBackend
from playhead.graph.backends.base import Backend
from playhead.graph.backends.cuda import CudaBackend
from playhead.graph.backends.tape import TapeBackend
from playhead.graph.breakable import BreakableCapture
from playhead.graph.bridges import BridgePool
from playhead.graph.capture import Capture, Inputs
from playhead.graph.full import FullCapture
from playhead.graph.piecewise import PiecewiseCapture, compiler_for
from playhead.graph.registry import CudaGraphBufferRegistry
from playhead.graph.runner import CaptureReport, GraphRunner, StepSpec
from playhead.graph.shapes import Decision, Dispatcher, DispatchLimits, Mode, bucket_sizes
from playhead.graph.sharing import InputBufferPool
from playhead.graph.slots import Batch, FillContext, GraphSlot
from playhead.kernels.binders import cpu_binders
from playhead.kv.cache import HybridKVCache, SequenceKV
from playhead.kv.mapping import Int32Array
from playhead.kv.plan import KVLimits, plan_kv
from playhead.kv.swa_pool import create_kv_pool
from playhead.models.decoder import Decoder
from playhead.schedule.chunk import Chunk
from playhead.step.forward import TOKEN_ROWS_SLOT, ModelStep, kv_geometry, layer_attentions, token_slots
from playhead.step.inflight import Collected, InFlight, start_stopwatch
from playhead.step.inputs import ADVANCES, InputFeatures, build_decode_registry, build_prefill_registry
from playhead.step.page_table import DevicePageTable
from playhead.step.publish import Publisher
from playhead.step.sampled_step import (
    LAST_TOKEN_SLOT,
    SAMPLING_ROWS_SLOT,
    SampledStep,
    StepOutput,
    token_step_slots,
)
from playhead.step.sampler_rows import SamplerRows, sampler_slots
from playhead.step.sampling import DRAWN, EVERYTHING, GREEDY, SamplerNeeds
from playhead.types import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Sizes of a worker. `token_mode` is how steps over tokens are captured; EAGER captures nothing at all."""

    kv_memory_bytes: int
    limits: KVLimits
    page_size: int = 16
    token_mode: Mode = Mode.BREAKABLE
    dispatch: DispatchLimits = field(default_factory=lambda: DispatchLimits(lazy=True))
    prefix_caching: bool = True
    strict_ledger: bool = False
    audit_every_steps: int | None = None
    """Steps between two full audits of the account of KV pages. None: as often as costs 1% of the time."""


class StepRequests(NamedTuple):
    """The chunks of a step; each request's length with it, and its row."""

    chunks: Sequence[Chunk]
    ends: Int32Array
    rows: Int32Array

    @classmethod
    def of(cls, chunks: Sequence[Chunk]) -> StepRequests:
        ends = np.array([chunk.end for chunk in chunks], dtype=np.int32)
        return cls(chunks, ends, np.array([chunk.seq.row for chunk in chunks], dtype=np.int32))


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardResult:
    """Logits of each chunk's last token, in order, and how the step ran."""

    logits_NV: torch.Tensor
    decision: Decision


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Advanced:
    """What the slots of decode hold after its last step: these sequences, one token longer than it ran with.

    Only what had a page when that step was launched: `num_places` counts the tokens of each row that had one. Void when
    anybody has filled the slots since: `num_fills` is the registry's at that time.
    """

    needs: SamplerNeeds
    num_fills: int
    seqs: list[SequenceKV]
    seq_lens: Int32Array
    num_places: Int32Array


class Worker:
    """One model on one device."""

    def __init__(self, decoder: Decoder, config: WorkerConfig) -> None:
        self.config, self.device = config, decoder.embedding_VM.device
        geometry = kv_geometry(decoder.spec, page_size=config.page_size, dtype=decoder.dtype)
        plan = plan_kv(num_bytes=config.kv_memory_bytes, geometry=geometry, limits=config.limits)
        self.kv = HybridKVCache(plan, prefix_caching=config.prefix_caching, strict=config.strict_ledger)
        self.pool = create_kv_pool(plan, self.kv.allocator.mapping, device=self.device)
        self.page_table = DevicePageTable(self.kv.rows, self.device)
        self._publisher = Publisher(self.device)
        decoder.reach(config.limits.max_context_tokens)
        layers = layer_attentions(decoder, self.pool)
        self._attention = self._attention_backend(layers)
        self.model = ModelStep(decoder, self.pool, layers, self._attention)
        max_running = config.limits.max_running
        self.sampler = SamplerRows(max_running=max_running, vocab_size=decoder.spec.vocab_size, device=self.device)
        self._sampled = SampledStep(self.model, self.sampler, self.page_table.table_RP)
        self._graphs: Backend = CudaBackend(self.device) if self.device.type == "cuda" else TapeBackend(cpu_binders())
        self._input_pool = InputBufferPool()  # decode and prefill never run at once
        self._decode_registry = build_decode_registry(
            max_bs=max_running,
            device=self.device,
            features=self._features(Phase.DECODE, *sampler_slots(advances=ADVANCES)),
            pool=self._input_pool,
        )
        self.decoders: dict[SamplerNeeds, GraphRunner] = {}
        self.decode = self.decoder_for(GREEDY)
        self.prefill = self._prefill_runner()
        self._finish_views: dict[int, Inputs] = {}
        self._advanced: Advanced | None = None
        self._in_flight: dict[Step, InFlight] = {}
        self._is_publishing = False

    def decoder_for(self, needs: SamplerNeeds) -> GraphRunner:
        """The decode runner with this sampling behind it. All of them run over the same slots."""
        runner = self.decoders.get(needs)
        if runner is None:
            if needs == EVERYTHING:
                self.sampler.make_tables()
            spec = self._sampled.decode_spec(needs, self._decode_registry.null_batch)
            runner = self._runner(spec, self._decode_registry, FullCapture(), largest=self.config.limits.max_running)
            self.decoders[needs] = runner
        return runner

    def capture_all(self, progress: Callable[[CaptureReport], None] | None = None) -> None:
        """Capture every bucket of prefill, greedy and drawing decode now; other sampling waits for its first use."""
        self.prefill.capture_all(progress)
        for needs in (GREEDY, DRAWN):
            self.decoder_for(needs).capture_all(progress)

    def publish(self) -> None:
        """Show the device which pages the sequences have now, ordered before what is launched next."""
        if self._is_publishing:  # a publication was cut short: what it had taken may have gone nowhere
            self.kv.rows.show_all()
            self.kv.allocator.mapping.show_all()
        self._is_publishing = True
        writes = self.page_table.take_writes()
        mapping = self.kv.allocator.mapping
        if mapping.must_publish:
            writes += self.pool.take_writes(mapping)
        self._publisher.send(writes)
        self._is_publishing = False

    def forward(self, chunks: Sequence[Chunk]) -> ForwardResult:
        """One step over sequences that were extended, and nothing else in flight."""
        launched = self.launch(chunks)
        self.collect(launched)
        return ForwardResult(logits_NV=launched.logits_NV, decision=launched.decision)

    def launch(self, chunks: Sequence[Chunk]) -> InFlight:
        """Start a step over sequences that were extended; the host goes on. Collect steps in the order of launch."""
        requests = StepRequests.of(chunks)
        needs = self.sampler.variant(requests.rows)
        is_decode = decodes(chunks)
        goes_on = is_decode and self._can_replay_in_place(requests, needs)
        batch: dict[str, Any] = {}
        if not goes_on:
            # Before the commit, which may exchange a page for an equal one of the prefix cache, for the steps to come.
            batch = self.decode_batch(requests) if is_decode else self.prefill_batch(requests)
        self.publish()
        step = self.kv.begin()
        try:
            stopwatch = start_stopwatch(self.device)
            if is_decode:
                decision, output = self._decode(self.decoder_for(needs), batch)
                self._advanced = self._after_decode(requests, needs)
            else:
                decision, output = self._prefill(batch, needs)
            readback = stopwatch.read_back(output.sampled)
            launched = InFlight(step=step, decision=decision, readback=readback, logits_NV=output.logits_NV)
            self._in_flight[step] = launched
            self.kv.commit()
        except BaseException:
            self.give_up([step])
            raise
        return launched

    def collect(self, launched: InFlight) -> Collected:
        """Wait for a step's tokens. What was given up while it ran can be reused. A second time gives the same."""
        sampled = launched.readback.wait()
        self._in_flight.pop(launched.step, None)
        self.settle()
        return Collected(sampled=sampled, device_us=launched.readback.device_us())

    @property
    def steps_in_flight(self) -> list[Step]:
        """Steps that were launched and not collected, the oldest first."""
        return list(self._in_flight)

    def _can_replay_in_place(self, requests: StepRequests, needs: SamplerNeeds) -> bool:
        """Whether the slots hold this very step: the last one's sequences, each one further, at places it knew."""
        last = self._advanced
        if last is None or last.needs != needs or last.num_fills != self._decode_registry.num_fills:
            return False
        if last.seqs != [chunk.seq for chunk in requests.chunks]:  # themselves, not their rows: those are used again
            return False
        unread = all(chunk.tokens[0] < 0 for chunk in requests.chunks)
        ends = requests.ends
        return unread and bool((ends == last.seq_lens + 1).all() and (ends <= last.num_places).all())

    def _after_decode(self, requests: StepRequests, needs: SamplerNeeds) -> Advanced:
        return Advanced(
            needs=needs,
            num_fills=self._decode_registry.num_fills,
            seqs=[chunk.seq for chunk in requests.chunks],
            seq_lens=requests.ends,
            num_places=self.kv.num_places_of(requests.rows),
        )

    def _decode(self, runner: GraphRunner, batch: dict[str, Any]) -> tuple[Decision, StepOutput]:
        """A step over requests; without a batch, the one that the slots hold already."""
        self._advanced = None  # an error below leaves the slots as nobody knows
        if batch:
            result = runner.run(batch, raw_bs=len(batch["seq_lens"]), raw_num_tokens=len(batch["seq_lens"]))
        else:
            result = runner.replay_advanced()
        return result.decision, result.output

    def _prefill(self, batch: dict[str, Any], needs: SamplerNeeds) -> tuple[Decision, StepOutput]:
        num_requests = len(batch["seq_lens"])
        result = self.prefill.run(batch, raw_bs=num_requests, raw_num_tokens=len(batch["input_ids"]))
        return result.decision, self._sampled.finish(result.output, self._finish_inputs(num_requests), needs)

    def _finish_inputs(self, num_requests: int) -> Inputs:
        """The slots of a step over tokens that have a row per request. Views are dear, so they are kept."""
        views = self._finish_views.get(num_requests)
        if views is None:
            slots = self.prefill.registry.slots
            views = {name: slot.rows(0, num_requests) for name, slot in slots.items() if slot.axis == "bs"}
            self._finish_views[num_requests] = views
        return views

    def give_up(self, steps: Iterable[Step]) -> None:
        """Steps that did not run, or whose results nobody will collect. Who was in them must be computed anew."""
        self._advanced = None
        for step in steps:
            self._in_flight.pop(step, None)
        self.settle()

    def settle(self) -> None:
        """Retire all steps before the oldest one in flight, whether they ran or not. A second call changes nothing."""
        done = Step(min(self._in_flight) - 1) if self._in_flight else self.kv.allocator.launched_step
        if done > self.kv.allocator.retired_step:
            self.kv.retire(done)

    def decode_batch(self, requests: StepRequests) -> dict[str, Any]:
        """The slots of a step with one token of every request."""
        ids = np.array([chunk.tokens[0] for chunk in requests.chunks], dtype=np.int32)
        return self._batch(requests, ids, requests.rows, requests.ends - np.int32(1))

    def prefill_batch(self, requests: StepRequests) -> dict[str, Any]:
        """The slots of a step with any number of tokens of each: also which are whose, and who gets a new one."""
        chunks, ends, rows = requests
        lens = np.array([len(chunk.tokens) for chunk in chunks], dtype=np.int32)
        stops = np.cumsum(lens, dtype=np.int32)
        ids = np.fromiter(chain.from_iterable(chunk.tokens for chunk in chunks), dtype=np.int32, count=int(stops[-1]))
        # The token at index i of the step stands as far before its request's end as i before the request's last index.
        positions = np.arange(len(ids), dtype=np.int32) + np.repeat(ends - stops, lens)
        token_rows = np.repeat(rows, lens)
        return self._batch(requests, ids, token_rows, positions) | {
            TOKEN_ROWS_SLOT: token_rows,
            "query_starts": stops - lens,
            "query_lens": lens,
            LAST_TOKEN_SLOT: stops - np.int32(1),
            SAMPLING_ROWS_SLOT: rows * np.array([chunk.samples for chunk in chunks], dtype=np.int32),
        }

    def _batch(
        self, requests: StepRequests, ids: Int32Array, token_rows: Int32Array, positions: Int32Array
    ) -> dict[str, Any]:
        """The slots every step has, from its tokens: their ids, rows and positions."""
        chunks, ends, rows = requests
        num_generated = np.array([chunk.num_generated for chunk in chunks], dtype=np.int64)
        return {
            "input_ids": ids,
            "positions": positions,
            "out_cache_loc": self.kv.full_locs(token_rows, positions),
            "req_pool_indices": rows,
            "seq_lens": ends,
            **self.sampler.batch(rows, num_generated),
        }

    def _attention_backend(self, layers: tuple[LayerAttention, ...]) -> AttentionBackend:
        table_RP = self.page_table.table_RP
        if self.device.type == "cuda":
            return TritonBackend(table_RP, layers, max_bs=self.config.limits.max_running)
        return CpuBackend(table_RP, layers)

    def _features(self, phase: Phase, *extra: GraphSlot) -> InputFeatures:
        """What steps of a phase read beyond the usual: the attention backend's slots, and those of what runs beside."""
        fill_value = self._attention.seq_len_fill_value
        return InputFeatures(extra=(*self._attention.slots(phase), *extra), seq_len_fill_value=fill_value)

    def _prefill_runner(self) -> GraphRunner:
        limits = self.config.limits
        # A step that mixes one chunk with decoding requests has a token of each of them besides.
        most_tokens = limits.chunk_tokens + limits.max_running
        registry = build_prefill_registry(
            max_bs=limits.max_running,
            max_num_tokens=most_tokens,
            device=self.device,
            features=self._features(Phase.EXTEND, *token_slots(), *sampler_slots(), *token_step_slots()),
            pool=self._input_pool,
        )

        def one_request(ctx: FillContext) -> Batch:
            """A null request of the bucket's tokens, all of it in the sink. It must not hold the worker: a cycle."""
            length = np.array([placeholder_tokens(ctx.raw_num_tokens, limits)], dtype=np.int32)
            queries = {"query_starts": np.zeros(1, np.int32), "query_lens": length}
            return registry.null_batch(ctx) | {"seq_lens": length} | queries

        capture = self._token_capture(most_tokens)
        spec = self._sampled.token_spec(one_request, has_breaks=capture.mode is not Mode.FULL)
        return self._runner(spec, registry, capture, largest=most_tokens)

    def _token_capture(self, most_tokens: int) -> Capture:
        if self.config.token_mode is Mode.FULL:
            return FullCapture()
        bridges = BridgePool(max_rows=most_tokens, device=self.device)
        if self.config.token_mode is Mode.PIECEWISE:
            return PiecewiseCapture(bridges, compiler_for(self.device))
        return BreakableCapture(bridges)

    def _runner(
        self, step: StepSpec, registry: CudaGraphBufferRegistry, capture: Capture, *, largest: int
    ) -> GraphRunner:
        buckets = () if self.config.token_mode is Mode.EAGER else bucket_sizes(largest)
        return GraphRunner(
            step,
            registry=registry,
            capture=capture,
            backend=self._graphs,
            dispatcher=Dispatcher(capture.mode, buckets, self.config.dispatch),
        )


def placeholder_tokens(num_tokens: int, limits: KVLimits) -> int:
    """Tokens of a bucket that are one request's: it cannot have more than its row of the page table has places.

    The tokens after them are nobody's, like padding.
    """
    return min(num_tokens, limits.max_context_tokens)


def decodes(chunks: Sequence[Chunk]) -> bool:
    """Whether a step is one of decode: a token of every request, and a new one for each.

    A prompt's chunk of one token, with more to come, gets none: a decode graph would count what it draws for it.
    """
    return all(len(chunk.tokens) == 1 and chunk.samples for chunk in chunks)
