"""Where one answer stands in its grammar, and which tokens may follow.

A mask has a bit for each id of the vocabulary, 32 to a word, the lowest bit first. Shapes: W words of a mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from playhead.errors import PlayheadError
from playhead.grammar.compiler import Grammar

Int32Array = npt.NDArray[np.int32]

BITS = 32
NO_IDS: frozenset[int] = frozenset()
NO_ROOM = "lexer error: too many"
"""How llguidance's errors begin when it has no room for another state."""
TOKENS_APART = 8
"""An answer that lacks room again before so many tokens needs too much itself. Every step would wait for it."""


def num_words(vocab_size: int) -> int:
    """Words of a mask: 4,097 ids take 129."""
    return -(-vocab_size // BITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherRules:
    """What a request forbids besides, as token ids: its grammar must leave something over.

    `ending_ids` cannot come before `min_tokens` tokens. A bad word's last token cannot follow its other tokens.
    """

    allowed_ids: tuple[int, ...] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    ending_ids: frozenset[int] = NO_IDS
    min_tokens: int = 0

    @property
    def forbid_something(self) -> bool:
        return self.allowed_ids is not None or bool(self.bad_words) or (self.min_tokens > 0 and bool(self.ending_ids))

    def forbidden(self, output: Sequence[int]) -> set[int]:
        """The ids that cannot follow this output, whatever the grammar says; without those that never can."""
        found = set(self.ending_ids) if len(output) < self.min_tokens else set()
        for *start, end in self.bad_words:
            if not start or list(output[-len(start) :]) == start:
                found.add(end)
        return found


class Matcher:
    """One answer's place in its grammar. It has taken the first `num_taken` tokens of the answer.

    The answer's own tokens are the truth: a request that is preempted keeps them, so its matcher stays what it is.
    With `can_force`, tokens that must follow may be taken as given, without asking the model.
    """

    def __init__(self, grammar: Grammar, rules: OtherRules | None = None, *, can_force: bool = False) -> None:
        self._grammar = grammar
        self.state, self._source = grammar.start()
        self._moved_at: int | None = None
        self._rules = rules if rules is not None and rules.forbid_something else None
        self._allowed_W: Int32Array | None = None
        if self._rules is not None and self._rules.allowed_ids is not None:
            self._allowed_W = mask_of(self._rules.allowed_ids, grammar.vocab_size)
        self.num_taken, self.can_force = 0, can_force
        self._is_taking = False

    def follow(self, output: list[int]) -> None:
        """Take the tokens of the answer that are new. A second call changes nothing."""
        if self._is_taking:  # the last call was interrupted: what the state has taken is unknown
            (self.state, self._source), self.num_taken = self._grammar.start(), 0
        new = output[self.num_taken :]
        self._is_taking = True
        if new and not self.state.consume_tokens(new) and not self._goes_on(output):
            # llguidance stays in error from here on, and so does this answer. Other answers have states of their own.
            raise PlayheadError(f"the grammar does not allow {len(new)} more tokens: {self._reason()}")
        self.num_taken += len(new)
        self._is_taking = False

    def write_mask(self, address: int, num_bytes: int) -> None:
        """The bits of what the grammar allows after the tokens that it has taken, into so much memory."""
        self.state.unsafe_compute_mask_ptr(address, num_bytes)

    def restrict(self, output: list[int], mask_W: Int32Array) -> int:
        """Take what the other rules forbid from a mask that was just computed; gives `num_words_left` of the rest."""
        if self.state.is_error() and not self._goes_on(output, mask_W):
            raise PlayheadError(f"the grammar has no mask for the next token: {self._reason()}")
        if self._rules is not None:
            self._forbid(self._rules.forbidden(output), mask_W)
        return num_words_left(mask_W)

    def forced(self, mask_W: Int32Array) -> list[int]:
        """Tokens that must follow: the grammar leaves one text, and this is how the tokenizer cuts it.

        `mask_W` is the mask of the first of them. With bits in more than one word there is a choice: ask no more then.
        """
        if not self.can_force:
            return []
        tokens = self.state.compute_ff_tokens()
        is_allowed = bool(tokens) and bool(mask_W[tokens[0] // BITS] & bit(tokens[0]))
        return tokens if is_allowed else []

    def _goes_on(self, output: list[int], mask_W: Int32Array | None = None) -> bool:
        """Whether an answer that lacked room for states has gone on in a state with room, and has its mask there.

        The first try may find no room either, for other answers share it. The second has a matcher that is new: what
        fills that one is the fault of this answer alone.
        """
        if self._moved_at is not None and 0 < len(output) - self._moved_at < TOKENS_APART:
            return False
        for _ in range(2):
            if not self.state.get_error().startswith(NO_ROOM):
                break
            self._moved_at = len(output)
            self.state, self._source = self._grammar.start(self._source)
            if self.state.consume_tokens(output) and mask_W is not None:
                self.write_mask(mask_W.ctypes.data, mask_W.nbytes)
        return not self.state.is_error()

    def _forbid(self, ids: set[int], mask_W: Int32Array) -> None:
        if self._allowed_W is not None:
            np.bitwise_and(mask_W, self._allowed_W, out=mask_W)
        for token in ids:
            mask_W[token // BITS] &= ~bit(token)

    def _reason(self) -> str:
        return " ".join(self.state.get_error().partition("\n")[0].split())


def bit(token: int) -> np.int32:
    """The bit of an id in its word. Bit 31 is the sign."""
    return np.uint32(1 << (token % BITS)).view(np.int32)


def num_words_left(mask_W: Int32Array) -> int:
    """How many words of a mask have a bit: 0, 1, or 2 for more. (0, 6, 0, 1) gives 2.

    Most masks have bits that are far from each other, and their bytes tell at once.
    """
    num_bytes = len(mask_W.tobytes().strip(b"\0"))
    if num_bytes > BITS // 8:
        return 2
    return min(2, int(np.count_nonzero(mask_W)))


def mask_of(ids: Sequence[int], vocab_size: int) -> Int32Array:
    """A mask that allows these ids alone."""
    mask_W = np.zeros(num_words(vocab_size), dtype=np.uint32)
    for token in ids:
        mask_W[token // BITS] |= np.uint32(1 << (token % BITS))
    return mask_W.view(np.int32)
