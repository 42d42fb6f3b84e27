"""Steps in which grammars limit the tokens of some requests: launched in two parts, body and tail.

The mask of a request's next token depends on its last token, and with overlap that one is still on the device when the
next step is launched. So a step with such a request is cut before its choice of tokens. The body (embedding to logits)
is launched at once. While it runs the host reads the tokens of the step before and fills the masks; then it launches
the tail (mask, choice, next inputs). Steps without such requests stay whole, in graphs of their own.

Shapes: N requests of a step, W words of a mask: a bit for each token id, 1 if the id may come out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from playhead.grammar.matcher import num_words
from playhead.graph.capture import Inputs
from playhead.graph.late import LateRegistry
from playhead.graph.shapes import Decision
from playhead.graph.slots import Batch, FillContext, GraphSlot, PaddingPolicy
from playhead.graph.split import SplitRunner
from playhead.sampling_params import SamplingKind
from playhead.schedule.rows import DecodeSlots
from playhead.step.forward import StepOutput
from playhead.step.inputs import StepRequests
from playhead.step.sampling import MASKS_SLOT, SampledTokens

if TYPE_CHECKING:
    from playhead.step.worker import Readback, Stopwatch, Worker

ALL_ALLOWED = -1  # every bit of a word: a padded row, or a request without a grammar, may get any token


def masks_slot(vocab_size: int) -> GraphSlot:
    """A line of bits per request. Padded requests allow everything: a row without a token would have no choice."""
    return GraphSlot(
        name=MASKS_SLOT,
        shape_fn=lambda bs, tokens: (bs, num_words(vocab_size)),
        dtype=torch.int32,
        axis="bs",
        padding_policy=PaddingPolicy.FILL_SENTINEL,
        pad_value=ALL_ALLOWED,
        staged=True,
    )


@dataclass(kw_only=True, eq=False)  # mutable: runners are made when they are first wanted
class MaskedSteps:
    """The masks of a worker's steps, on the host and on the device, and the decode runners that read them."""

    registry: LateRegistry
    make_decoder: Callable[[SamplingKind], SplitRunner]
    decoders: dict[SamplingKind, SplitRunner] = field(default_factory=dict)
    decode_slots: DecodeSlots | None = None
    """What the slots of these runners hold: they are not those of the other decode runners."""

    def __post_init__(self) -> None:
        slot = self.registry.get_slot(MASKS_SLOT)
        assert slot.buffer is not None, "a frozen registry has its memory"
        self._masks_NW: npt.NDArray[np.int32] = np.full(tuple(slot.buffer.shape), ALL_ALLOWED, dtype=np.int32)

    def can_replay_in_place(self, requests: StepRequests, kind: SamplingKind) -> bool:
        """Whether the slots of these runners hold this very step."""
        last, num_fills = self.decode_slots, self.registry.num_fills
        return last is not None and last.hold(requests.chunks, kind, num_fills=num_fills)

    def tail(self, kind: SamplingKind, num_requests: int, stopwatch: Stopwatch) -> Tail:
        """The second part of a step that is about to be launched."""
        return Tail(steps=self, kind=kind, num_requests=num_requests, stopwatch=stopwatch)

    def decoder_for(self, kind: SamplingKind) -> SplitRunner:
        """The decode runner with this sampling behind its masks."""
        if kind not in self.decoders:
            self.decoders[kind] = self.make_decoder(kind)
        return self.decoders[kind]

    def all_allowed(self, num_requests: int) -> npt.NDArray[np.int32]:
        """Masks of a step that forbid nothing yet, to be written. The next step writes the same memory."""
        masks_NW = self._masks_NW[:num_requests]
        masks_NW.fill(ALL_ALLOWED)
        return masks_NW

    def filled(self, masks_NW: npt.NDArray[np.int32]) -> Inputs:
        """The masks on the device, for a step over tokens, which samples outside its graph."""
        num_requests = len(masks_NW)
        ctx = FillContext(raw_bs=num_requests, padded_bs=num_requests, raw_num_tokens=0, padded_num_tokens=0)
        self.registry.fill_late({MASKS_SLOT: masks_NW}, ctx)
        return {MASKS_SLOT: self.registry.get_slot(MASKS_SLOT).rows(0, num_requests)}


@dataclass(slots=True, kw_only=True, eq=False)  # mutable: it is launched once
class Tail:
    """The second part of a launched step. Its results come back when it was launched, by `launch`.

    `sample` makes tokens of masks: the first part leaves it here.
    """

    steps: MaskedSteps
    kind: SamplingKind
    num_requests: int
    stopwatch: Stopwatch
    sample: Callable[[npt.NDArray[np.int32]], StepOutput] | None = None
    _readback: Readback | None = None

    @property
    def is_launched(self) -> bool:
        return self._readback is not None

    def launch_body(
        self, worker: Worker, requests: StepRequests, batch: Batch | None
    ) -> tuple[Decision, torch.Tensor, SampledTokens | None]:
        """Launch all of a step that does not wait for masks. Gives where its logits will be, and reports of prompts."""
        steps, kind, forward, prompt = self.steps, self.kind, worker.forward, None
        if requests.is_decode:
            steps.decode_slots = None  # an error below leaves the slots as nobody knows
            runner = steps.decoder_for(kind)
            result = runner.run_or_go_on(batch, self.num_requests)
            steps.decode_slots = worker.slots_after(requests, kind, runner)
            self.sample = lambda masks_NW: runner.finish({MASKS_SLOT: masks_NW}).output
        else:
            result, inputs, prompt = worker.run_tokens(requests, batch)
            h_TM = result.output  # held alone: with the worker there would be a cycle
            self.sample = lambda masks_NW: forward.sample_last(h_TM, {**inputs, **steps.filled(masks_NW)}, kind)
        return result.decision, forward.logits(self.num_requests), prompt

    def masks(self) -> npt.NDArray[np.int32]:
        """A line per request of the step, all of it allowed, to be written for those that have a grammar."""
        return self.steps.all_allowed(self.num_requests)

    def launch(self, masks_NW: npt.NDArray[np.int32]) -> None:
        """Choose the step's tokens among those that the masks allow."""
        assert self.sample is not None, "the first part was launched"
        self._readback = self.stopwatch.read_back(self.sample(masks_NW).sampled)

    def wait(self) -> SampledTokens:
        assert self._readback is not None, "a step's tokens are there after its tail was launched"
        return self._readback.wait()

    def device_us(self) -> float:
        assert self._readback is not None, "a step's tokens are there after its tail was launched"
        return self._readback.device_us()
