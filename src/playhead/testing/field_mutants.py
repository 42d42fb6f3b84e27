"""Bugs of what few requests ask for, and what notices them: forbidden tokens, and logprobs of prompts.

Everything is compared with plain attention over the whole text, computed here without pages, rows or tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from playhead.models.decoder import Decoder
from playhead.outputs import RequestOutput
from playhead.schedule.request import Chunk, Request
from playhead.step.scores import SamplerTables
from playhead.testing.mutant import Checker, Mutant, Oracle, Patch, mutant, swapped
from playhead.testing.tiny_engine import LITTLE_BYTES, Ask, greedy, run_asks, tiny_engine
from playhead.testing.tiny_worker import dense_logits, tiny_worker
from playhead.types import Row

PROMPTS: tuple[tuple[int, ...], ...] = (
    (7, 8, 9, 10, 11),
    tuple(range(20, 34)),
    (40, 41, 42),
    (*range(20, 32), 1),
)
NUM_TOKENS = 10
ALLOWED = tuple(range(1, 64, 3))
CLOSE = 1e-3


@mutant("words a token late", source="bad words compared with what the host has read", killed_by=("forbidden tokens",))
def words_a_token_late() -> Patch:
    """A bad word is compared with the output as it was one token ago."""
    original = SamplerTables.take_

    def late(self: SamplerTables, rows_N: torch.Tensor, tokens_N: torch.Tensor) -> None:
        before_NH = self.recent_RH[rows_N.long()]
        original(self, rows_N, tokens_N)
        after_NH = self.recent_RH[rows_N.long()]
        shifted_NH = torch.cat((before_NH[:, :1], after_NH[:, :-1]), dim=-1)
        self.recent_RH.index_put_((rows_N.long(),), shifted_NH)

    return swapped(SamplerTables, "take_", late)


@mutant("mask kept in a row", source="per-request state in a recycled row", killed_by=("forbidden tokens",))
def mask_kept_in_a_row() -> Patch:
    """What a request may not say is forbidden to the next one in its row."""

    def keeps_the_bias(self: SamplerTables, row: Row) -> None:
        for table in self.tensors:
            if table is not self.bias_RV:
                table[row].zero_()

    return swapped(SamplerTables, "clear_", keeps_the_bias)


@mutant("words forgotten", source="a preempted request comes back", killed_by=("forbidden tokens",))
def words_forgotten() -> Patch:
    """A request that comes back to a row has no recent tokens."""
    original = SamplerTables._write_words_

    def empty(self: SamplerTables, row: Row, request: Request) -> None:
        original(self, row, request)
        self.recent_RH[row].zero_()

    return swapped(SamplerTables, "_write_words_", empty)


@mutant("prompt logprobs off by one", source="a position and the token it predicts", killed_by=("prompt logprobs",))
def prompt_logprobs_off_by_one() -> Patch:
    """The first position of a chunk is taken for one that predicts nothing."""

    def reported(self: Chunk) -> range:
        if self.request.params.prompt_logprobs is None:
            return range(0)
        return range(self.end - len(self.tokens) + 1, min(self.end, len(self.request.prompt) - 1))

    return swapped(Chunk, "reported", property(reported))


@mutant("prefix read for prompt logprobs", source="a cached token has no logits", killed_by=("prompt logprobs",))
def prefix_read_for_prompt_logprobs() -> Patch:
    """A request that wants the logprobs of its prompt starts behind a cached prefix."""
    return swapped(Request, "reads_prefixes", property(lambda self: True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A request, its tokens, and the logits of every position of its prompt."""

    ask: Ask
    tokens: list[int]
    prompt_logits_TV: torch.Tensor


def by_hand(decoder: Decoder, ask: Ask) -> Answered:
    """Greedy decoding without an engine."""
    output: list[int] = []
    allowed = ask.params.allowed_token_ids or range(decoder.spec.vocab_size)
    for _ in range(NUM_TOKENS):
        logits = dense_logits(decoder, (*ask.prompt, *output))[0].tolist()
        possible = [token for token in allowed if not completes_a_word((*output, token), ask.bad_words)]
        output.append(max(possible, key=lambda token: logits[token]))
    prefixes = [ask.prompt[: n + 1] for n in range(len(ask.prompt))]
    prompt_logits = torch.cat([dense_logits(decoder, prefix) for prefix in prefixes])
    return Answered(ask=ask, tokens=output, prompt_logits_TV=prompt_logits)


def spoiling_words(decoder: Decoder, prompt: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Words of two tokens that forbid the best token at every step but the first."""
    output, words = [int(dense_logits(decoder, prompt)[0].argmax())], list[tuple[int, ...]]()
    for _ in range(NUM_TOKENS - 1):
        best, second = dense_logits(decoder, (*prompt, *output))[0].topk(2).indices.tolist()
        words.append((output[-1], best))
        output.append(second)
    return words


def completes_a_word(tokens: tuple[int, ...], words: Sequence[tuple[int, ...]]) -> bool:
    return any(tokens[-len(word) :] == word for word in words)


def fields_by_hand() -> list[Answered]:
    """Requests with words that they would say, with few tokens to choose from, and with nothing, one after another."""
    decoder, answered = tiny_worker().model.decoder, []
    for i, prompt in enumerate(PROMPTS):
        free = by_hand(decoder, Ask(name=f"free {i}", prompt=prompt, params=greedy(NUM_TOKENS), comes=4 * i))
        words = (*spoiling_words(decoder, prompt), tuple(free.tokens[:3]), (free.tokens[4],))
        reported = greedy(NUM_TOKENS, prompt_logprobs=i)
        # It comes last in order, so its memory is taken first.
        worded = replace(free.ask, name=f"worded {i}", params=reported, bad_words=words, priority=1)
        chosen = greedy(NUM_TOKENS, allowed_token_ids=ALLOWED, prompt_logprobs=0)
        few = replace(free.ask, name=f"few {i}", params=chosen)
        answered += [by_hand(decoder, worded), by_hand(decoder, few), free]
    return answered


FIELDS_BY_HAND = Oracle(name="fields by hand", compute=fields_by_hand)


def outputs_of(wanted: Sequence[Answered]) -> list[tuple[str, dict[str, RequestOutput], list[str]]]:
    """The requests together: steps read late in little memory, and steps read at once in enough."""
    runs = []
    for overlap, kv_memory_bytes in ((True, LITTLE_BYTES), (False, 1 << 20)):
        engine = tiny_engine(overlap=overlap, kv_memory_bytes=kv_memory_bytes)
        outputs, found = run_asks(engine, [one.ask for one in wanted])
        if overlap and not engine.stats.num_preemptions:
            found.append("nobody was preempted")
        runs.append(("overlapped in little memory" if overlap else "one by one", outputs, found))
    return runs


def forbidden_tokens(wanted: Sequence[Answered]) -> list[str]:
    """Every token is the best one that the request may say."""
    found = []
    for run, outputs, violations in outputs_of(wanted):
        found += violations
        for one in wanted:
            tokens = outputs[one.ask.name].outputs[0].token_ids
            if tokens != one.tokens:
                found.append(f"{run}: {one.ask.name}: {tokens}; by hand {one.tokens}")
    return found


def prompt_logprobs(wanted: Sequence[Answered]) -> list[str]:
    """Every prompt token has the log-softmax of the logits before it, and the best tokens are those of the logits."""
    found = []
    for run, outputs, violations in outputs_of(wanted):
        found += violations
        for one in wanted:
            if one.ask.params.prompt_logprobs is not None:
                found += [f"{run}: {one.ask.name}: {wrong}" for wrong in wrong_prompt(one, outputs[one.ask.name])]
    return found


def wrong_prompt(wanted: Answered, output: RequestOutput) -> list[str]:
    tables, num_best = output.prompt_logprobs, wanted.ask.params.prompt_logprobs
    assert num_best is not None, "asked for"
    if tables is None or len(tables) != len(wanted.ask.prompt) or tables[0] is not None:
        return [f"{tables}; wanted None and {len(wanted.ask.prompt) - 1} tables"]
    logprobs_TV = wanted.prompt_logits_TV.log_softmax(dim=-1)
    for position, (token, table) in enumerate(zip(wanted.ask.prompt[1:], tables[1:], strict=True)):
        best = logprobs_TV[position].topk(num_best).indices.tolist()
        assert table is not None, "only the first is None"
        if list(table) != list(dict.fromkeys([token, *best])):
            return [f"position {position} has {list(table)}; wanted {token} and {best}"]
        off = max(abs(entry.logprob - float(logprobs_TV[position, i])) for i, entry in table.items())
        if not off < CLOSE:
            return [f"position {position} is off by {off:.1e}"]
    return []


FIELD_MUTANTS: tuple[Mutant, ...] = (
    words_a_token_late,
    mask_kept_in_a_row,
    words_forgotten,
    prompt_logprobs_off_by_one,
    prefix_read_for_prompt_logprobs,
)

FIELD_CHECKERS: tuple[Checker, ...] = (
    Checker(name="forbidden tokens", run=forbidden_tokens, oracles=(FIELDS_BY_HAND,)),
    Checker(name="prompt logprobs", run=prompt_logprobs, oracles=(FIELDS_BY_HAND,)),
)
