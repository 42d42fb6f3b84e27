"""The wiring of a worker: memory, attention, inputs and runners of one model on one device."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable

import torch

from playhead.attention.base import AttentionBackend, LayerAttention
from playhead.attention.cpu import CpuBackend
from playhead.attention.ordered import OrderedBackend
from playhead.attention.triton import TritonBackend
from playhead.graph.backends.base import Backend
from playhead.graph.backends.cuda import CudaBackend
from playhead.graph.backends.tape import TapeBackend
from playhead.graph.breakable import BreakableCapture
from playhead.graph.bridges import BridgePool
from playhead.graph.capture import Capture
from playhead.graph.full import FullCapture
from playhead.graph.late import LateRegistry
from playhead.graph.piecewise import PiecewiseCapture, compiler_for
from playhead.graph.registry import CudaGraphBufferRegistry
from playhead.graph.runner import GraphRunner
from playhead.graph.shapes import Dispatcher, bucket_sizes, token_sizes
from playhead.graph.sharing import InputBufferPool
from playhead.graph.spec import StepSpec
from playhead.graph.split import SplitCapture, SplitRunner
from playhead.kernels.binders import cpu_binders
from playhead.kv.cache import HybridKVCache
from playhead.kv.device_tables import DeviceTables
from playhead.kv.plan import plan_kv
from playhead.kv.swa_pool import create_kv_pool
from playhead.layers.linear import order_sums
from playhead.models.decoder import Decoder
from playhead.sampling_params import SamplingKind
from playhead.step.compile_ahead import compile_ahead
from playhead.step.forward import Forward, ModelStep, kv_geometry, layer_attentions
from playhead.step.inputs import BOXES, OVER_TOKENS, SAMPLING
from playhead.step.masks import MaskedSteps, masks_slot
from playhead.step.publish import Publisher
from playhead.step.registries import (
    ADVANCES,
    InputFeatures,
    build_decode_registry,
    build_prefill_registry,
    one_null_request,
    register_inputs,
)
from playhead.step.sampling import SamplerRows
from playhead.step.worker import Worker, WorkerConfig
from playhead.types import Mode


def build_worker(decoder: Decoder, config: WorkerConfig) -> Worker:
    """A worker for this model. KV memory is taken now; graphs are captured when they are first wanted.

    On a GPU the kernels of its steps are compiled now, all at a time.
    """
    limits, device = config.limits, decoder.embedding_VM.device
    geometry = kv_geometry(decoder.spec, page_size=config.page_size, dtype=decoder.dtype)
    plan = plan_kv(num_bytes=config.kv_memory_bytes, geometry=geometry, limits=limits)
    kv = HybridKVCache(plan, prefix_caching=config.prefix_caching, strict=config.strict_ledger)
    tables = DeviceTables(plan, device)
    pool = create_kv_pool(plan, kv.allocator.mapping, device=device, tables=tables)
    decoder.reach(limits.max_context_tokens)
    layers = layer_attentions(decoder, pool)
    attention = prepare_sums(decoder, tables.table_RP, layers, batch_invariant=config.batch_invariant)
    sampler = SamplerRows(max_running=limits.max_running, vocab_size=decoder.spec.vocab_size, device=device)
    forward = Forward(ModelStep(decoder, pool, layers, attention), sampler, tables.table_RP)
    fill_value = attention.seq_len_fill_value
    decode = InputFeatures(extra=(*SAMPLING, BOXES), seq_len_fill_value=fill_value)
    prefill = InputFeatures(extra=(*SAMPLING, *OVER_TOKENS), seq_len_fill_value=fill_value)
    runners = Runners(config, forward, device)
    token_runner = runners.prefill(prefill)
    registry = build_decode_registry(max_bs=limits.max_running, device=device, features=decode, pool=runners.pool)

    def make_decoder(kind: SamplingKind) -> GraphRunner:
        return runners.decode(kind, registry)

    def make_masked() -> MaskedSteps:
        return runners.masked(decode)

    def make_whole_prefill() -> GraphRunner:
        return runners.whole_prefill(token_runner.registry)

    worker = Worker(
        config=config,
        device=device,
        kv=kv,
        pool=pool,
        tables=tables,
        publisher=Publisher(tables.memory_L),
        forward=forward,
        decode_inputs=decode.made,
        prefill_inputs=prefill.made,
        prefill=token_runner,
        make_decoder=make_decoder,
        make_masked=make_masked,
        make_whole_prefill=make_whole_prefill,
    )
    if device.type == "cuda":
        compile_ahead(worker, pkgutil.resolve_name("playhead.kernels.triton.compile_ahead:compiling_ahead"))
    return worker


def prepare_sums(
    decoder: Decoder, page_table_RP: torch.Tensor, layers: tuple[LayerAttention, ...], *, batch_invariant: bool
) -> AttentionBackend:
    """The attention of a decoder, whose linear maps are told too if every sum is to have a fixed order."""
    if batch_invariant:
        order_sums(decoder)
    return attention_backend(page_table_RP, layers, batch_invariant=batch_invariant)


def attention_backend(
    page_table_RP: torch.Tensor, layers: tuple[LayerAttention, ...], *, batch_invariant: bool
) -> AttentionBackend:
    """Our kernels on a GPU, numpy elsewhere, whose order is fixed."""
    if page_table_RP.device.type == "cuda":
        return gpu_attention(page_table_RP, layers, batch_invariant=batch_invariant)
    return CpuBackend(page_table_RP, layers)


def gpu_attention(
    page_table_RP: torch.Tensor, layers: tuple[LayerAttention, ...], *, batch_invariant: bool
) -> AttentionBackend:
    backend = OrderedBackend if batch_invariant else TritonBackend
    return backend(page_table_RP, layers, max_bs=page_table_RP.shape[0] - 1)  # row 0 is the sink's


class Runners:
    """Makes the runners of a worker, over one graph backend. It must not hold the worker: that would be a cycle."""

    def __init__(self, config: WorkerConfig, forward: Forward, device: torch.device) -> None:
        self._config, self._forward, self._device = config, forward, device
        self._graphs: Backend = CudaBackend(device) if device.type == "cuda" else TapeBackend(cpu_binders())
        self.pool = InputBufferPool()  # decode and prefill never run at once
        # A step that mixes one chunk with decoding requests has a token of each of them besides.
        self._most_tokens = config.limits.chunk_tokens + config.limits.max_running
        self._bridges = BridgePool(max_rows=self._most_tokens, device=device)

    def decode(self, kind: SamplingKind, registry: CudaGraphBufferRegistry) -> GraphRunner:
        """Decode with this sampling behind it."""
        if kind is SamplingKind.EVERYTHING:
            self._forward.sampler.make_tables()
        spec = self._forward.decode_spec(kind, registry.null_batch)
        return self._runner(spec, registry, FullCapture(), bucket_sizes(self._config.limits.max_running))

    def masked(self, features: InputFeatures) -> MaskedSteps:
        """Decode behind masks, over a registry of its own: other steps copy no masks."""
        most, vocab_size = self._config.limits.max_running, self._forward.model.decoder.spec.vocab_size
        registry = LateRegistry(masks_slot(vocab_size), max_bs=most, max_num_tokens=most, device=self._device)
        register_inputs(registry, features, advances=ADVANCES)

        def make_decoder(kind: SamplingKind) -> SplitRunner:
            if kind is SamplingKind.EVERYTHING:
                self._forward.sampler.make_tables()
            return SplitRunner(
                self._forward.decode_spec(kind, registry.null_batch),
                registry=registry,
                capture=SplitCapture(),
                backend=self._graphs,
                dispatcher=self._dispatcher(Mode.FULL, bucket_sizes(most)),
            )

        return MaskedSteps(registry=registry, make_decoder=make_decoder)

    def prefill(self, features: InputFeatures) -> GraphRunner:
        """Steps over tokens."""
        registry = build_prefill_registry(
            max_bs=self._config.limits.max_running,
            max_num_tokens=self._most_tokens,
            device=self._device,
            features=features,
            pool=self.pool,
        )
        return self._over_tokens(self._forward.token_spec, registry)

    def whole_prefill(self, registry: CudaGraphBufferRegistry) -> GraphRunner:
        """The same steps over the same slots, up to the hidden states of all tokens."""
        return self._over_tokens(self._forward.whole_token_spec, registry)

    def _over_tokens(self, spec_of: Callable[..., StepSpec], registry: CudaGraphBufferRegistry) -> GraphRunner:
        capture, limits = self._token_capture(), self._config.limits
        placeholder = one_null_request(registry, limits.max_context_tokens)
        spec = spec_of(placeholder, has_breaks=capture.mode is not Mode.FULL)
        return self._runner(spec, registry, capture, token_sizes(limits.chunk_tokens, limits.max_running))

    def _token_capture(self) -> Capture:
        if self._config.token_mode is Mode.FULL:
            return FullCapture()
        if self._config.token_mode is Mode.PIECEWISE:
            return PiecewiseCapture(self._bridges, compiler_for(self._device))
        return BreakableCapture(self._bridges)

    def _runner(
        self, step: StepSpec, registry: CudaGraphBufferRegistry, capture: Capture, sizes: tuple[int, ...]
    ) -> GraphRunner:
        dispatcher = self._dispatcher(capture.mode, sizes)
        return GraphRunner(step, registry=registry, capture=capture, backend=self._graphs, dispatcher=dispatcher)

    def _dispatcher(self, mode: Mode, sizes: tuple[int, ...]) -> Dispatcher:
        return Dispatcher(mode, () if self._config.token_mode is Mode.EAGER else sizes, self._config.dispatch)
