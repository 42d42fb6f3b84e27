"""Steps in which grammars limit the tokens of some requests: launched in two parts, body and tail.

The mask of a request's next token depends on its last token, and with overlap that one is still on the device when the
next step is launched. So a step with such a request is cut before its choice of tokens. The body (embedding to logits)
is launched at once. While it runs the host reads the tokens of the step before and fills the masks; then it launches
the tail (mask, choice, next inputs). Steps without such requests stay whole, in graphs of their own.

Shapes: N requests of a step, W words of a mask: a bit for each token id, 1 if the id may come out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from playhead.grammar.matcher import num_words
from playhead.graph.capture import Inputs
from playhead.graph.late import LateRegistry, LateRows
from playhead.graph.shapes import Decision
from playhead.graph.slots import Batch, GraphSlot, PaddingPolicy
from playhead.graph.spec import StepResult
from playhead.graph.split import SplitRunner
from playhead.sampling_params import SamplingKind
from playhead.schedule.rows import DecodeSlots
from playhead.step.forward import Forward
from playhead.step.inputs import StepRequests
from playhead.step.sampling import MASKS_SLOT, ReadTokens, SampledTokens

if TYPE_CHECKING:
    from playhead.step.orders import Leader
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

    def can_replay_in_place(self, requests: StepRequests, kind: SamplingKind) -> bool:
        """Whether the slots of these runners hold this very step."""
        last, num_fills = self.decode_slots, self.registry.num_fills
        return last is not None and last.hold(requests.chunks, kind, num_fills=num_fills, box=requests.box)

    def decoder_for(self, kind: SamplingKind) -> SplitRunner:
        """The decode runner with this sampling behind its masks."""
        if kind not in self.decoders:
            self.decoders[kind] = self.make_decoder(kind)
        return self.decoders[kind]

    def sent(self, num_requests: int) -> Inputs:
        """The masks on the device, for a step over tokens, which samples outside its graph."""
        self.registry.send_late()
        return {MASKS_SLOT: self.registry.get_slot(MASKS_SLOT).rows(0, num_requests)}


@dataclass(slots=True, kw_only=True, eq=False)  # mutable: it is launched once
class Tail:
    """The second part of a launched step. Its results come back when it was launched, by `launch`.

    `sample` sends the masks and makes tokens: the first part leaves it here.
    """

    steps: MaskedSteps
    kind: SamplingKind
    stopwatch: Stopwatch
    leader: Leader | None
    sample: Callable[[], StepResult] | None = None
    readback: Readback | None = None

    def launch_body(
        self, worker: Worker, requests: StepRequests, batch: Batch | None
    ) -> tuple[Decision, torch.Tensor, SampledTokens | None]:
        """Launch all of a step that does not wait for masks. Gives where its logits will be, and reports of prompts."""
        num_requests, prompt = len(requests.chunks), None
        if requests.is_decode:
            steps, kind = self.steps, self.kind
            steps.decode_slots = None  # after an error below it is not known what the slots hold
            runner = steps.decoder_for(kind)
            result = runner.run_or_go_on(batch, num_requests)
            steps.decode_slots = worker.slots_after(requests, kind, runner)
            self.sample = runner.finish
        else:
            result, inputs, prompt = worker.run_tokens(requests, batch)
            self.sample = self._sample_last(worker.forward, result, inputs)
        return result.decision, worker.forward.logits(num_requests), prompt

    def _sample_last(self, forward: Forward, hidden: StepResult, inputs: Inputs) -> Callable[[], StepResult]:
        """What makes the tokens of a step over tokens. It does not hold the worker: that would be a cycle."""
        steps, kind = self.steps, self.kind

        def sample() -> StepResult:
            sent = steps.sent(len(inputs["sampling_rows"]))
            return replace(hidden, output=forward.sample_last(hidden.output, {**inputs, **sent}, kind))

        return sample

    def masks(self, formed: Sequence[int]) -> LateRows:
        """A line per request, all of it allowed, of which those that a grammar limits may be written."""
        return self.steps.registry.open_late(formed)

    def launch(self) -> None:
        """Choose the step's tokens among those that the masks allow, as they were written."""
        assert self.sample is not None, "the first part was launched"
        with nullcontext() if self.leader is None else self.leader.leading_tail():
            self.readback = self.stopwatch.read_back(self.sample().output.sampled)

    def wait(self) -> ReadTokens:
        assert self.readback is not None, "a step's tokens are there after its tail was launched"
        return self.readback.wait()

    def device_us(self) -> float:
        assert self.readback is not None, "a step's tokens are there after its tail was launched"
        return self.readback.device_us()
