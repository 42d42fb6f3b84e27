"""A request on its way: what was asked, what it has so far, and what a step computes of it. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from playhead.grammar.matcher import Matcher
from playhead.kv.sequence import SequenceKV, Stride
from playhead.outputs import FinishReason
from playhead.sampling_params import SamplingParams

DONE = frozenset((FinishReason.STOP, FinishReason.LENGTH))
"""How a request ends that has its whole answer: the KV that it computed may serve others."""
MAX_PREEMPTIONS = 8  # after so many a request goes before all others, so none is computed anew for ever


@dataclass(slots=True, kw_only=True, eq=False)  # mutable: it is the state of a request
class Request:
    """One sequence to generate. Lower `priority` goes first; equals go in the order of `arrival`.

    `ending_ids` are the token ids that end it, `late_ids` those that cannot come out before `min_tokens`. `bad_words`
    has the token ids of what must not come out, and `matcher` the place of its output in its grammar. `is_plain` if its
    tokens need no look one by one before its end. `num_sampled` counts the tokens that launched steps have sampled:
    those in `output`, and those that the host has not read yet. `DeviceRows` knows its KV memory while it runs.
    """

    id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    max_new_tokens: int
    arrival: int
    seed: int = 0
    """What it draws with if its parameters have no seed."""
    priority: int = 0
    salt: str = ""
    ending_ids: frozenset[int] = frozenset()
    late_ids: frozenset[int] = frozenset()
    bad_words: tuple[tuple[int, ...], ...] = ()
    matcher: Matcher | None = None
    is_plain: bool = False
    output: list[int] = field(default_factory=list)
    forced: tuple[int, ...] = ()
    """Tokens that are known before the step that samples the first of them was read."""
    forced_from: int = 0
    """Index of the first forced token in the answer: `output` gets them one by one."""
    sampled: tuple[int, Stride] = field(default_factory=lambda: (0, Stride()))
    num_preemptions: int = 0
    num_cached_tokens: int = 0
    finish_reason: FinishReason | None = None

    @property
    def num_sampled(self) -> int:
        return self.sampled[0] + self.sampled[1].num_placed

    @num_sampled.setter
    def num_sampled(self, value: int) -> None:
        self.sampled = value - self.sampled[1].num_placed, self.sampled[1]

    def join(self, stride: Stride) -> None:
        """Sample with these steps from now on, a token each. Nothing else changes."""
        self.sampled = self.num_sampled - stride.num_placed, stride

    @property
    def tokens(self) -> Sequence[int]:
        """All tokens known so far: the prompt and what was generated."""
        return (*self.prompt, *self.output) if self.output else self.prompt

    def tokens_between(self, first: int, end: int) -> tuple[int, ...]:
        """Tokens [first, end) without the rest."""
        num_prompt, output = len(self.prompt), self.output
        if end <= num_prompt:
            return self.prompt[first:end]
        if self.forced:
            output = [*output, *self.forced[len(output) - self.forced_from :]]
        return (*self.prompt[first:end], *output[max(0, first - num_prompt) : max(0, end - num_prompt)])

    @property
    def reads_prefixes(self) -> bool:
        """Whether cached prefixes serve it. Of a cached token there are no logits to report."""
        return self.params.prompt_logprobs is None

    @property
    def num_unread(self) -> int:
        """Tokens that launched steps sample and the host has not read yet."""
        return self.num_sampled - len(self.output)

    @property
    def num_to_sample(self) -> int:
        """Tokens that steps to come may still sample for it."""
        return self.max_new_tokens - self.num_sampled

    @property
    def order(self) -> tuple[int, int, int]:
        """Requests go in this order, and are preempted from its end, so the first request always gets on.

        Requests that were preempted often enough come before all others, in the order of arrival.
        """
        if self.num_preemptions >= MAX_PREEMPTIONS:
            return 0, self.arrival, 0
        return 1, self.priority, self.arrival


def in_order(request: Request) -> tuple[int, int, int]:
    return request.order


def lacks_token(output: list[int], index: int) -> bool:
    """Whether the token of this index is the next one: tokens are read in order, and a read may be repeated."""
    return len(output) == index


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One request's part in a step: `tokens` of a sequence that end before position `end`.

    In a running step they are the newest ones, which `kv.extend` has just made places for. A token below zero is -row:
    the newest of that row, which the device has and the host may not have read. `samples` if the step gives the request
    its next token, its `num_generated`-th counted from 0. `seq` is the request's memory in this step. The request may
    have lost it, and got another, before the step is read.
    """

    request: Request
    seq: SequenceKV
    tokens: Sequence[int]
    end: int
    samples: bool = True
    num_generated: int = 0

    @property
    def reported(self) -> range:
        """The positions whose logits say how likely the prompt's next token was, if the request wants to know."""
        if self.request.params.prompt_logprobs is None:
            return range(0)
        return range(self.end - len(self.tokens), min(self.end, len(self.request.prompt) - 1))

    @classmethod
    def newest(cls, seq: SequenceKV, tokens: Sequence[int]) -> Chunk:
        """The newest tokens of a sequence that no scheduler planned, as audits and tests run them."""
        request = Request(id=seq.request, prompt=(), params=SamplingParams(), max_new_tokens=1, arrival=0)
        return cls(request=request, seq=seq, tokens=tokens, end=seq.num_tokens)
