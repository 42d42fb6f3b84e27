"""Runs steps of one model: launches a step, and later collects its tokens.

A worker owns the KV cache, the pool, the tables and the runners: decode over requests, prefill over tokens. A step goes
to decode when every request has one token and gets a new one, else to prefill; both go through the same memory.
The next step may be launched before the last one is collected, because what it needs of the last is on the device.
`build.py` makes workers; `inputs.py` makes what a step reads.

Shapes: N requests of a step, V vocabulary.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch

from playhead.graph.capture import Inputs
from playhead.graph.runner import GraphRunner
from playhead.graph.shapes import Decision, DispatchLimits
from playhead.graph.slots import Batch
from playhead.graph.spec import CaptureReport, StepResult
from playhead.kv.cache import HybridKVCache
from playhead.kv.device_tables import DeviceTables, DeviceWrite
from playhead.kv.plan import KVLimits
from playhead.sampling_params import SamplingKind
from playhead.schedule.request import Chunk
from playhead.schedule.rows import DecodeSlots, DeviceRows
from playhead.step.cuda_readback import CudaStopwatches
from playhead.step.forward import LAST_TOKENS_SLOT, Forward, KVPool, ModelStep, StepOutput
from playhead.step.inputs import StepInput, StepRequests, batch_of
from playhead.step.masks import MaskedSteps, Tail
from playhead.step.orders import Leader, step_order
from playhead.step.outbox import FIRST_BOX, NUM_BOXES, Box, box_after, boxes_from
from playhead.step.prompt_report import PromptReport
from playhead.step.publish import Publisher
from playhead.step.sampling import ReadTokens, SampledTokens, SamplerRows
from playhead.types import Mode, Step

NOTHING_TO_LEAD = nullcontext()  # where there are no other ranks


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
    batch_invariant: bool = False
    audit_every_steps: int | None = None
    """Steps between two full audits of the account of KV pages. None: as often as costs 1% of the time."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InFlight:
    """One launched step. Its pages are not reused before it is collected."""

    step: Step
    decision: Decision
    readback: Readback
    prompt_readback: Readback | None
    """Of the prompt tokens whose logprobs are wanted, those of all chunks in their order."""
    logits_NV: torch.Tensor
    """On the device, until the next launch. Without columns where the step chose its tokens without logits."""
    box: int | None = None
    """Where the step leaves its tokens for the host, if it does."""
    tail: Tail | None = None
    """The part that is launched when the step before was read, where grammars limit tokens."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Collected:
    """The tokens of a step on the host, one row per chunk, and how long the device took.

    `prompt` has a row for each position in the chunks' `reported`, if there are any.
    """

    sampled: ReadTokens
    prompt: ReadTokens | None
    device_us: float


@dataclass(kw_only=True, eq=False)  # mutable: steps come and go; without slots, so that it can be referred to weakly
class Worker:
    """One model on one device. `make_decoder` gives a decode runner for a kind of sampling, all over the same slots."""

    config: WorkerConfig
    device: torch.device
    kv: HybridKVCache
    pool: KVPool
    tables: DeviceTables
    publisher: Publisher
    forward: Forward
    decode_inputs: tuple[StepInput, ...]
    prefill_inputs: tuple[StepInput, ...]
    prefill: GraphRunner
    make_decoder: Callable[[SamplingKind], GraphRunner]
    make_masked: Callable[[], MaskedSteps]
    make_whole_prefill: Callable[[], GraphRunner]
    rows: DeviceRows = field(default_factory=DeviceRows)
    decoders: dict[SamplingKind, GraphRunner] = field(default_factory=dict)
    masked: MaskedSteps | None = None
    whole_prefill: GraphRunner | None = None
    """Over the slots of `prefill`, for steps that report on prompts. Made when the first request wants that."""
    leader: Leader | None = None
    """Of the other ranks, where there are some and this is the first."""
    _in_flight: dict[Step, InFlight] = field(default_factory=dict)
    _inputs_by_request: dict[int, Inputs] = field(default_factory=dict)
    _is_publishing: bool = False
    _next_box: int = FIRST_BOX
    """Where a decode step that goes on in place leaves its tokens, and any other one may."""

    def __post_init__(self) -> None:
        self._start_stopwatch = stopwatches(self.device, self.config.limits.max_running)

    @property
    def model(self) -> ModelStep:
        return self.forward.model

    @property
    def sampler(self) -> SamplerRows:
        return self.forward.sampler

    @property
    def decode(self) -> GraphRunner:
        return self.decoder_for(SamplingKind.GREEDY)

    def decoder_for(self, kind: SamplingKind) -> GraphRunner:
        """The decode runner with this sampling behind it."""
        if kind not in self.decoders:
            self.decoders[kind] = self.make_decoder(kind)
        return self.decoders[kind]

    @property
    def runners(self) -> list[GraphRunner]:
        """Every runner there is, in an order that is the same on all ranks, whichever was made first."""
        made: list[Mapping[SamplingKind, GraphRunner]] = [self.decoders]
        if self.masked is not None:
            made.append(self.masked.decoders)
        whole = () if self.whole_prefill is None else (self.whole_prefill,)
        return [self.prefill, *whole, *(decoders[kind] for decoders in made for kind in sorted(decoders))]

    @property
    def is_capturing(self) -> bool:
        """Whether a graph is captured now, which may take longer than any step. Any thread may ask."""
        return any(runner.is_capturing for runner in self.runners)

    @property
    def usual_runners(self) -> tuple[GraphRunner, ...]:
        """Prefill, greedy and drawing decode. Those of other sampling are captured when they are first used."""
        return self.prefill, self.decoder_for(SamplingKind.GREEDY), self.decoder_for(SamplingKind.DRAWN)

    def prepare_masks(self) -> MaskedSteps:
        """Room for masks, made at the first call: most engines never see a grammar."""
        if self.masked is None:
            self.masked = self.make_masked()
        return self.masked

    def capture_all(self, progress: Callable[[CaptureReport], None] | None = None) -> None:
        """Capture every bucket of the usual runners now."""
        gc.collect()  # what it frees now is room for the graphs
        with NOTHING_TO_LEAD if self.leader is None else self.leader.leading_captures():
            for runner in self.usual_runners:
                runner.capture_all(progress)

    def close(self) -> None:
        """End the other ranks, if there are any."""
        if self.leader is not None:
            self.leader.close()

    def move_to_this_thread(self) -> None:
        """Another thread than before launches from now on. CUDA's current device and stream are each thread's own."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
            if torch.cuda.current_stream(self.device) != torch.cuda.default_stream(self.device):
                torch.cuda.synchronize(self.device)  # work on two streams has no order

    def publish(self) -> None:
        """Show the device which pages the sequences have now, ordered before what is launched next."""
        if self._is_publishing:  # a publication was cut short: what it had taken may have gone nowhere
            self.kv.rows.show_all()
            self.kv.allocator.mapping.show_all()
        mapping = self.kv.allocator.mapping
        if not (self._is_publishing or self.kv.rows.must_publish or mapping.must_publish):
            return  # changes that no step reads wait for the next ones that a step does
        self._is_publishing = True
        writes = [DeviceWrite(*self.kv.rows.take_changed())]
        if mapping.must_publish:
            writes += self.pool.take_writes(mapping)
        if self.leader is not None:
            self.leader.tell_writes(writes)
        self.publisher.send(writes)
        self._is_publishing = False

    def run(self, chunks: Sequence[Chunk]) -> InFlight:
        """One step over sequences that were extended, collected, with nothing else in flight."""
        launched = self.launch(chunks)
        self.collect(launched)
        return launched

    def requests(self, chunks: Sequence[Chunk]) -> StepRequests:
        """The requests of a step, as its inputs are made from them."""
        return StepRequests(chunks, self.kv, self.sampler, self._free_box())

    def launch(self, chunks: Sequence[Chunk]) -> InFlight:
        """Start a step over sequences that were extended; the host goes on. Collect steps in the order of launch."""
        assert len(self._in_flight) < NUM_BOXES, "a step is read before its box is another one's"
        requests = self.requests(chunks)
        kind = requests.chunks.kind
        if kind is None:
            kind = requests.chunks.kind = self.sampler.kind(requests.rows)
        masked = self.prepare_masks() if requests.chunks.formed else None
        batch: Batch | None = None  # the slots hold the step
        # Made before the commit, which may exchange a page for an equal one of the prefix cache, for the steps to come.
        if not requests.is_decode:
            batch = batch_of(self.prefill_inputs, requests)
        elif not (self if masked is None else masked).can_replay_in_place(requests, kind):
            batch = batch_of(self.decode_inputs, requests)
        if requests.is_decode:
            self._next_box = box_after(requests.box)
        self.publish()
        step = self.kv.begin()
        try:
            stopwatch = self._start_stopwatch()
            leader, is_masked = self.leader, masked is not None
            tail = None if masked is None else Tail(steps=masked, kind=kind, stopwatch=stopwatch, leader=leader)
            led = leader and leader.leading(step_order(requests, kind, batch, is_masked=is_masked))
            with led or NOTHING_TO_LEAD:
                if tail is not None:
                    decision, logits_NV, prompt = tail.launch_body(self, requests, batch)
                else:
                    run = self._run_decode if requests.is_decode else self._run_prefill
                    decision, output, prompt = run(requests, kind, batch)
                    logits_NV = output.logits_NV
            launched = InFlight(
                step=step,
                decision=decision,
                prompt_readback=None if prompt is None else stopwatch.read_back(prompt),
                readback=tail or stopwatch.read_back(output.sampled, self._box_of(requests)),
                logits_NV=logits_NV,
                box=requests.box if requests.is_decode else None,
                tail=tail,
            )
            self._in_flight[step] = launched
            self.kv.commit()
        except BaseException:
            self.give_up([step])
            raise
        return launched

    def _run_decode(
        self, requests: StepRequests, kind: SamplingKind, batch: Batch | None
    ) -> tuple[Decision, StepOutput, None]:
        """A step over requests; without a batch, the one that the slots hold already."""
        self.rows.decode_slots = None  # after an error below it is not known what the slots hold
        runner = self.decoder_for(kind)
        result = runner.run_or_go_on(batch, len(requests.chunks))
        self.rows.decode_slots = self.slots_after(requests, kind, runner)
        return result.decision, result.output, None

    def can_replay_in_place(self, requests: StepRequests, kind: SamplingKind) -> bool:
        """Whether the slots of decode hold this very step."""
        num_fills = self.decode.registry.num_fills
        return self.rows.can_replay_in_place(requests.chunks, kind, num_fills=num_fills, box=requests.box)

    def slots_after(self, requests: StepRequests, kind: SamplingKind, runner: GraphRunner) -> DecodeSlots:
        """What the slots of a decode runner hold after this step."""
        plan, num_fills = requests.chunks, runner.registry.num_fills
        num_places = None if plan.goes_on else self.kv.num_places_of(plan.rows)
        box = box_after(requests.box)
        return DecodeSlots.after_launch(plan, kind, num_fills=num_fills, num_places=num_places, box=box)

    def _free_box(self) -> int:
        """The next box, or the first one behind it that no unread step has."""
        unread = {launched.box for launched in self._in_flight.values()}
        return next(box for box in boxes_from(self._next_box) if box not in unread)

    def _box_of(self, requests: StepRequests) -> Box | None:
        """Where a step leaves its tokens for the host, if it is a decode step."""
        return self.forward.outbox.box(requests.box, len(requests.chunks)) if requests.is_decode else None

    def _run_prefill(
        self, requests: StepRequests, kind: SamplingKind, batch: Batch | None
    ) -> tuple[Decision, StepOutput, SampledTokens | None]:
        """A step over tokens, a new token for each request that gets one, and reports of prompts that want them."""
        result, inputs, prompt = self.run_tokens(requests, batch)
        return result.decision, self.forward.sample_last(result.output, inputs, kind), prompt

    def run_tokens(
        self, requests: StepRequests, batch: Batch | None
    ) -> tuple[StepResult, Inputs, SampledTokens | None]:
        """A step over tokens up to its hidden states, with what sampling reads."""
        assert batch is not None, "a step over tokens is filled"
        num_requests = len(requests.chunks)
        result, reported = self.run_filled_tokens(
            batch, num_requests, requests.chunks.num_tokens, PromptReport.wanted(requests)
        )
        return result, self.sampling_inputs(num_requests), reported

    def run_filled_tokens(
        self, batch: Batch, num_requests: int, num_tokens: int, report: PromptReport | None
    ) -> tuple[StepResult, SampledTokens | None]:
        """The hidden states of each request's last token, and the report, if one is wanted."""
        if report is None:
            return self.prefill.run(batch, raw_bs=num_requests, raw_num_tokens=num_tokens), None
        if self.whole_prefill is None:
            self.whole_prefill = self.make_whole_prefill()
        result = self.whole_prefill.run(batch, raw_bs=num_requests, raw_num_tokens=num_tokens)
        last_N = self.prefill.registry.get_slot(LAST_TOKENS_SLOT).rows(0, num_requests)
        reported = report.compute(self.forward, result.output)
        return replace(result, output=result.output.index_select(0, last_N)), reported

    def sampling_inputs(self, num_requests: int) -> Inputs:
        """What sampling reads after a step over tokens: the slots that have a row per request.

        Views are dear, so they are kept.
        """
        inputs = self._inputs_by_request.get(num_requests)
        if inputs is None:
            slots = self.prefill.registry.slots.items()
            inputs = {name: slot.rows(0, num_requests) for name, slot in slots if slot.axis == "bs"}
            self._inputs_by_request[num_requests] = inputs
        return inputs

    def collect(self, launched: InFlight) -> Collected:
        """Wait for a step's tokens. What was given up while it ran can be reused. A second time gives the same."""
        with NOTHING_TO_LEAD if self.leader is None else self.leader.waiting():
            prompt = None if launched.prompt_readback is None else launched.prompt_readback.wait()
            sampled = launched.readback.wait()
        self._in_flight.pop(launched.step, None)
        self.settle()
        return Collected(sampled=sampled, prompt=prompt, device_us=launched.readback.device_us())

    @property
    def steps_in_flight(self) -> list[Step]:
        """Steps that were launched and not collected, the oldest first."""
        return list(self._in_flight)

    def give_up(self, steps: Iterable[Step]) -> None:
        """Drop steps that did not run, or will not be collected. Their requests must be computed anew."""
        self.rows.decode_slots = None
        if self.masked is not None:
            self.masked.decode_slots = None
        for step in steps:
            given_up = self._in_flight.pop(step, None)
            if given_up is not None and given_up.tail is not None and given_up.decision.mode is Mode.EAGER:
                self.kv.flush_prefixes()  # an eager step writes its keys with its tail: what it offered may be empty
        self.settle()

    def settle(self) -> None:
        """Retire all steps before the oldest one in flight, whether they ran or not. A second call changes nothing."""
        allocator = self.kv.allocator
        oldest = next(iter(self._in_flight), None)  # steps are launched in order
        done = allocator.launched_step if oldest is None else Step(oldest - 1)
        if done > allocator.retired_step:
            self.kv.retire(done)


# How results come back from the device, and how long it took.


class Readback(Protocol):
    """Results on their way to the host. The device's memory may be overwritten by the next launch at once."""

    def wait(self) -> ReadTokens:
        """The results, as soon as they have arrived."""

    def device_us(self) -> float:
        """The time the step took on its device. Call `wait` first."""


class Stopwatch(Protocol):
    """Started before a step's work is launched."""

    def read_back(self, results: SampledTokens, box: Box | None = None) -> Readback:
        """Results on their way. Tokens that the step itself leaves in a box are read there."""


class HostStopwatch:
    """A launch on a CPU returns when the step is done."""

    def __init__(self) -> None:
        self._started_s = time.perf_counter()

    def read_back(self, results: SampledTokens, box: Box | None = None) -> HostReadback:
        has_reports = bool(results.logprobs_NL.numel())
        elapsed_us = 1e6 * (time.perf_counter() - self._started_s)
        if box is not None and not has_reports:
            return HostReadback(box, elapsed_us)
        parts = tuple(tensor.clone() for tensor in results[1:]) if has_reports else ()
        return HostReadback(ReadTokens(results.tokens_N.numpy().tolist(), parts), elapsed_us)


@dataclass(slots=True, eq=False)  # mutable: a box is read once
class HostReadback:
    """Results that need no waiting for. A box is read when the results are asked for, as that of a GPU's step is."""

    results: ReadTokens | Box
    elapsed_us: float

    def wait(self) -> ReadTokens:
        if isinstance(self.results, Box):
            self.results = ReadTokens(self.results.read())
        return self.results

    def device_us(self) -> float:
        return self.elapsed_us


def stopwatches(device: torch.device, max_rows: int) -> Callable[[], Stopwatch]:
    """What starts the stopwatch of a step on this device."""
    return CudaStopwatches(device, max_rows).start if device.type == "cuda" else HostStopwatch
