"""What is in each row of running requests, on the device as the host knows it. No torch.

A row is used again when its request has ended or was preempted, and the device still has what the former request left
there. So everything is known by sequence: a request that gets a row gets a new sequence, and what the row holds of
another sequence counts as nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from playhead.kv.sequence import SequenceKV
from playhead.kv.tables import Int32Array
from playhead.sampling_params import SamplingKind
from playhead.schedule.request import Chunk, Request
from playhead.schedule.step_plan import StepPlan
from playhead.types import Row


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodeSlots:
    """What the slots of decode hold after its last step: these sequences, one token longer than the step ran with.

    A sequence's next place is there if it had a page when that step was launched: `has_next_places` says whether all of
    them had. A page that comes later is too late: the step has left the sink as the token's place. `num_places` counts
    the tokens of each row that had a place. It is None after a step in which the whole batch went on: then only the
    plan that follows that step is recognised. `box` is where their next step leaves its tokens for the host. Void when
    the slots were filled since: `num_fills` is the registry's at that time.
    """

    kind: SamplingKind
    num_fills: int
    plan: StepPlan
    has_next_places: bool
    num_places: Int32Array | None
    box: int

    @classmethod
    def after_launch(
        cls, plan: StepPlan, kind: SamplingKind, *, num_fills: int, num_places: Int32Array | None, box: int
    ) -> DecodeSlots:
        """What they hold after this plan's step, which is launched now: the plan may learn of pages later."""
        sure = plan.num_sure >= 0
        return cls(kind=kind, num_fills=num_fills, plan=plan, has_next_places=sure, num_places=num_places, box=box)

    def hold(self, plan: StepPlan, kind: SamplingKind, *, num_fills: int, box: int) -> bool:
        """Whether they hold this very step: its box, and the last step's sequences, one further, at known places."""
        if self.kind is not kind or self.num_fills != num_fills or self.box != box:
            return False
        if self.has_next_places and plan.follows(self.plan):
            return True
        # The sequences themselves are compared: their rows are used again.
        if self.num_places is None or self.plan.seqs != plan.seqs:
            return False
        is_unread, ends = plan.goes_on or bool((plan.first_tokens < 0).all()), plan.ends
        return is_unread and bool((ends == self.plan.ends + 1).all() and (ends <= self.num_places).all())


class DeviceRows:
    """Each row's sequence, whether the sampler knows it, whose newest token is there; and what decode's slots hold.

    `sequences` has the memory of every request that runs. A preempted request loses it and computes its tokens again.
    """

    def __init__(self) -> None:
        self.sequences: dict[Request, SequenceKV] = {}
        self.decode_slots: DecodeSlots | None = None
        self._newest: dict[Row, SequenceKV] = {}
        self._sampled: dict[Row, SequenceKV] = {}

    def by_turn(self, requests: Iterable[Request]) -> list[tuple[Request, int]]:
        """Requests and how many tokens they have to compute: decoding requests, then prompts, each in order."""
        placed = self.sequences
        turns = [(one, len(one.prompt) + one.num_sampled - placed[one].num_tokens) for one in requests]
        decoding = [turn for turn in turns if turn[1] == 1 and turn[0].num_to_sample > 0]
        return decoding + [turn for turn in turns if turn[1] > 1]

    def has_newest(self, seq: SequenceKV) -> bool:
        """Whether the device keeps the sequence's newest token in its row."""
        return self._newest.get(seq.row) is seq

    def put_newest(self, chunks: Iterable[Chunk]) -> None:
        """The step of these chunks leaves the tokens it samples in their rows."""
        self._newest.update({chunk.seq.row: chunk.seq for chunk in chunks if chunk.samples})

    def take_back_newest(self, chunk: Chunk) -> None:
        """The step did not run. Only a chunk that begins with the row's newest token had one there before."""
        if chunk.tokens[0] >= 0 and self.has_newest(chunk.seq):
            del self._newest[chunk.seq.row]

    def forget_newest(self, seq: SequenceKV) -> None:
        """The sequence's newest token is another one than the device keeps."""
        if self.has_newest(seq):
            del self._newest[seq.row]

    def unknown_to_sampler(self, chunks: Iterable[Chunk]) -> list[Chunk]:
        """The chunks whose row has the sampling parameters of another sequence, or none."""
        return [chunk for chunk in chunks if self._sampled.get(chunk.seq.row) is not chunk.seq]

    def tell_sampler(self, seq: SequenceKV) -> None:
        """The sampler has the sequence's parameters in its row."""
        self._sampled[seq.row] = seq

    def can_replay_in_place(self, plan: StepPlan, kind: SamplingKind, *, num_fills: int, box: int) -> bool:
        """Whether decode's slots hold this very step."""
        return self.decode_slots is not None and self.decode_slots.hold(plan, kind, num_fills=num_fills, box=box)
