"""A request on its way: what was asked, what it has so far, and where its memory is. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from playhead.kv.cache import SequenceKV
from playhead.outputs import FinishReason
from playhead.sampling_params import SamplingParams

MAX_PREEMPTIONS = 8  # after which a request goes before all others: nobody is computed anew for ever


@dataclass(slots=True, kw_only=True, eq=False)  # mutable: it is the state of a request
class Request:
    """One sequence to generate. Lower `priority` goes first; equals go in the order of `arrival`.

    `seq` is its KV memory while it runs. A preempted request loses it and computes its tokens again. `num_sampled`
    counts the tokens that launched steps have sampled: those in `output`, and those that nobody has read yet.
    `newest_in` is the memory in whose row the device keeps the newest token.
    """

    id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    max_new_tokens: int
    arrival: int
    priority: int = 0
    salt: str = ""
    output: list[int] = field(default_factory=list)
    num_sampled: int = 0
    seq: SequenceKV | None = None
    newest_in: SequenceKV | None = None
    num_preemptions: int = 0
    num_cached_tokens: int = 0
    finish_reason: FinishReason | None = None

    @property
    def tokens(self) -> list[int]:
        """All tokens known so far: the prompt and what was generated."""
        return [*self.prompt, *self.output]

    def tokens_between(self, first: int, end: int) -> tuple[int, ...]:
        """Tokens [first, end) without the rest."""
        num_prompt = len(self.prompt)
        return (*self.prompt[first:end], *self.output[max(0, first - num_prompt) : max(0, end - num_prompt)])

    @property
    def num_unread(self) -> int:
        """Tokens that launched steps sample and nobody has read yet."""
        return self.num_sampled - len(self.output)

    @property
    def num_to_compute(self) -> int:
        """Tokens that have no KV yet, known or unread. One, when it decodes."""
        placed = 0 if self.seq is None else self.seq.num_tokens
        return len(self.prompt) + self.num_sampled - placed

    @property
    def num_to_sample(self) -> int:
        """Tokens it may still get, beyond those that are under way."""
        return self.max_new_tokens - self.num_sampled

    @property
    def order(self) -> tuple[int, int, int]:
        """Who goes first. The last in this order is preempted first, so the first always gets on.

        Those that have been preempted often enough come before all others, the longest there first.
        """
        if self.num_preemptions >= MAX_PREEMPTIONS:
            return 0, self.arrival, 0
        return 1, self.priority, self.arrival
