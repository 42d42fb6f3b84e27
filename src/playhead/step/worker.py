"""Runs steps of one model: fills the graphs' inputs, replays, gives logits.

One worker owns the KV cache, the pool, the page table and two runners: decode over requests, prefill over tokens. A
step goes to decode when every request has one token, else to prefill; both go through the same memory.

Shapes: N requests of a step, T tokens of a step, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from playhead.attention.base import AttentionBackend, LayerAttention, Phase
from playhead.attention.reference import ReferenceBackend
from playhead.attention.triton_backend import TritonBackend
from playhead.errors import ConfigError
from playhead.graph.backends.base import Backend
from playhead.graph.backends.cuda import CudaBackend
from playhead.graph.backends.tape import TapeBackend
from playhead.graph.breakable import BreakableCapture
from playhead.graph.breaks import BridgePool
from playhead.graph.capture import Capture
from playhead.graph.full import FullCapture
from playhead.graph.piecewise import PiecewiseCapture, compiler_for
from playhead.graph.registry import CudaGraphBufferRegistry
from playhead.graph.runner import CaptureReport, GraphRunner, StepSpec
from playhead.graph.shapes import Decision, Dispatcher, DispatchLimits, Mode, bucket_sizes
from playhead.graph.slots import Batch, FillContext
from playhead.kv.cache import HybridKVCache, SequenceKV
from playhead.kv.plan import KVLimits, plan_kv
from playhead.kv.swa_pool import create_kv_pool
from playhead.models.decoder import Decoder
from playhead.step.inputs import InputFeatures, build_decode_registry, build_prefill_registry
from playhead.step.model_step import ModelStep, kv_geometry, layer_attentions
from playhead.step.page_table import DevicePageTable


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One request's part in a step: `tokens` of a sequence that end before position `end`.

    In a running step they are the newest ones, which `kv.extend` has just made places for.
    """

    seq: SequenceKV
    tokens: Sequence[int]
    end: int

    @classmethod
    def newest(cls, seq: SequenceKV, tokens: Sequence[int]) -> Chunk:
        return cls(seq=seq, tokens=tokens, end=seq.num_tokens)

    @property
    def first(self) -> int:
        return self.end - len(self.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardResult:
    """Logits of each chunk's last token, in order, and how the step ran."""

    logits_NV: torch.Tensor
    decision: Decision


class Worker:
    """One model on one device."""

    def __init__(self, decoder: Decoder, config: WorkerConfig) -> None:
        self.config, self.device = config, decoder.embedding_VM.device
        geometry = kv_geometry(decoder.spec, page_size=config.page_size, dtype=decoder.dtype)
        plan = plan_kv(num_bytes=config.kv_memory_bytes, geometry=geometry, limits=config.limits)
        self.kv = HybridKVCache(plan, prefix_caching=config.prefix_caching, strict=config.strict_ledger)
        self.pool = create_kv_pool(plan, self.kv.allocator.mapping, device=self.device)
        self.page_table = DevicePageTable(self.kv.rows, self.device)
        layers = layer_attentions(decoder, self.pool)
        backend = self._attention_backend(layers)
        self.model = ModelStep(decoder, self.pool, layers, backend)
        self._graphs: Backend = CudaBackend(self.device) if self.device.type == "cuda" else TapeBackend()
        self.decode = self._decode_runner(backend)
        self.prefill = self._prefill_runner(backend)

    def capture_all(self, progress: Callable[[CaptureReport], None] | None = None) -> None:
        """Capture every bucket of both runners now, instead of each at its first use."""
        self.prefill.capture_all(progress)
        self.decode.capture_all(progress)

    def publish(self) -> None:
        """Show the device which pages the sequences have now, ordered before what is launched next."""
        self.pool.publish(self.kv.allocator.mapping)
        self.page_table.publish()

    def forward(self, chunks: Sequence[Chunk]) -> ForwardResult:
        """One step over sequences that were extended: publish, launch, run, retire."""
        is_decode = all(len(chunk.tokens) == 1 for chunk in chunks)
        # Before the launch, which may exchange a page for an equal one of the prefix cache, for the steps to come.
        batch = self.decode_batch(chunks) if is_decode else self.prefill_batch(chunks)
        self.publish()
        step = self.kv.launch()
        try:
            return self._run(self.decode if is_decode else self.prefill, batch)
        except BaseException:
            # The launch offered these tokens to the prefix cache, and they were never computed.
            self.kv.flush_prefixes()
            raise
        finally:
            self.kv.retire(step)

    def _run(self, runner: GraphRunner, batch: dict[str, Any]) -> ForwardResult:
        """The launched step itself, and after a step over tokens the logits of each request's last one."""
        num_requests, num_tokens = len(batch["seq_lens"]), len(batch["input_ids"])
        result = runner.run(batch, raw_bs=num_requests, raw_num_tokens=num_tokens)
        logits_NV = result.output
        if runner is self.prefill:
            last_N = torch.from_numpy(batch["query_starts"] + batch["query_lens"] - 1).to(self.device)
            logits_NV = self.model.head(result.output[last_N])
        return ForwardResult(logits_NV=logits_NV, decision=result.decision)

    def decode_batch(self, chunks: Sequence[Chunk]) -> dict[str, Any]:
        """The slots every step has."""
        lens = np.array([chunk.end for chunk in chunks], dtype=np.int32)
        return {
            "input_ids": np.concatenate([np.asarray(chunk.tokens, dtype=np.int32) for chunk in chunks]),
            "positions": np.concatenate([np.arange(c.first, c.end, dtype=np.int32) for c in chunks]),
            "out_cache_loc": np.concatenate([self.kv.full_locs(c.seq, c.first, c.end) for c in chunks]),
            "req_pool_indices": np.array([chunk.seq.row for chunk in chunks], dtype=np.int32),
            "seq_lens": lens,
            "seq_lens_cpu": torch.from_numpy(lens),
        }

    def prefill_batch(self, chunks: Sequence[Chunk]) -> dict[str, Any]:
        """The same, and which tokens are whose."""
        lens = np.array([len(chunk.tokens) for chunk in chunks], dtype=np.int32)
        starts = np.cumsum(lens, dtype=np.int32) - lens
        return self.decode_batch(chunks) | {"query_starts": starts, "query_lens": lens}

    def _attention_backend(self, layers: tuple[LayerAttention, ...]) -> AttentionBackend:
        table_RP = self.page_table.table_RP
        if self.device.type == "cuda":
            return TritonBackend(page_table_RP=table_RP, layers=layers, max_bs=self.config.limits.max_running)
        return ReferenceBackend(page_table_RP=table_RP)

    def _decode_runner(self, backend: AttentionBackend) -> GraphRunner:
        max_bs = self.config.limits.max_running
        features = InputFeatures(extra=backend.slots(Phase.DECODE))
        registry = build_decode_registry(max_bs=max_bs, device=self.device, features=features)
        return self._runner(self.model.spec("bs", registry.null_batch), registry, FullCapture(), largest=max_bs)

    def _prefill_runner(self, backend: AttentionBackend) -> GraphRunner:
        limits = self.config.limits
        # A step that mixes one chunk with decoding requests has a token of each of them besides.
        most_tokens = limits.chunk_tokens + limits.max_running
        features = InputFeatures(extra=backend.slots(Phase.EXTEND))
        registry = build_prefill_registry(
            max_bs=limits.max_running, max_num_tokens=most_tokens, device=self.device, features=features
        )

        def one_request(ctx: FillContext) -> Batch:
            """A null request of the bucket's tokens, all of it in the sink."""
            length = np.array([self._placeholder_tokens(ctx.raw_num_tokens)], dtype=np.int32)
            lengths = {"seq_lens": length, "seq_lens_cpu": torch.from_numpy(length)}
            queries = {"query_starts": np.zeros(1, np.int32), "query_lens": length}
            return registry.null_batch(ctx) | lengths | queries

        bridges = BridgePool(max_rows=most_tokens, device=self.device)
        capture: Capture = BreakableCapture(bridges)
        if self.config.token_mode is Mode.PIECEWISE:
            capture = PiecewiseCapture(bridges, compiler_for(self.device))
        elif self.config.token_mode is Mode.FULL:
            raise ConfigError(
                "token_mode: found full; wanted breakable, piecewise or eager. A full graph fits one batch."
            )
        return self._runner(self.model.spec("tokens", one_request), registry, capture, largest=most_tokens)

    def _placeholder_tokens(self, num_tokens: int) -> int:
        """Tokens of a bucket that are one request's: it cannot have more than its row of the page table has places.

        The tokens after them are nobody's, like padding.
        """
        return min(num_tokens, self.config.limits.max_context_tokens)

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
