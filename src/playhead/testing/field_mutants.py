"""Bugs of what few requests ask for, and what notices them: forbidden tokens, filters, ends, and logprobs of prompts.

Logits are those of plain attention over the whole text, computed here without pages, rows or tables.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from playhead.engine import response
from playhead.engine.front import PromptReader
from playhead.engine.response import ResponseBuilder
from playhead.models.decoder import Decoder
from playhead.models.text.ids_only import IdsOnlyTokenizer
from playhead.outputs import RequestOutput
from playhead.sampling_params import SamplingParams
from playhead.schedule.request import Chunk, Request
from playhead.step import sampling
from playhead.step.scores import SamplerInputs, SamplerTables, least_of
from playhead.testing.mutant import Checker, Mutant, Oracle, Patch, mutant, swapped
from playhead.testing.scripted_backend import embedded_reader
from playhead.testing.tiny_engine import LITTLE_BYTES, Ask, drawn, greedy, run_asks, tiny_engine
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
OFF = {"min_p": -math.inf, "top_k": 0, "top_p": 1.0}
"""The sampler's numbers of filters that are off."""


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


@mutant("min-p after top-p", source="found here: a share of what min-p had not cut", killed_by=("drawn tokens",))
def min_p_after_top_p() -> Patch:
    """Top-p keeps its share of the tokens that top-k left, those that min-p cuts among them."""

    def apart(logits_NV: torch.Tensor, inputs: SamplerInputs) -> torch.Tensor:
        off = {name: torch.full_like(inputs.numbers[name], value) for name, value in OFF.items()}
        without_min_p = {**inputs.numbers, "min_p": off["min_p"]}
        min_p_alone = {**inputs.numbers, "top_k": off["top_k"], "top_p": off["top_p"]}
        first, second = (least_of(logits_NV, replace(inputs, numbers=one)) for one in (without_min_p, min_p_alone))
        return first.maximum(second)

    return swapped(sampling, "least_of", apart)


@mutant("ignored end comes early", source="found here: vLLM's min_tokens with ignore_eos", killed_by=("early ends",))
def ignored_end_comes_early() -> Patch:
    """The model's end token waits for `min_tokens` only where it would end the answer."""

    def of_endings(self: PromptReader, params: SamplingParams) -> frozenset[int]:
        return self.ending_ids(params) if params.min_tokens else frozenset()

    return swapped(PromptReader, "late_ids", of_endings)


@mutant(
    "stop begun too early", source="found here: a stop string across min_tokens", killed_by=("stop across min_tokens",)
)
def stop_begun_too_early() -> Patch:
    """A stop string must begin behind the first `min_tokens`."""

    def behind(text: str, stops: Sequence[str], num_known: int) -> tuple[int, str] | None:
        return next(((at, stop) for stop in stops if (at := text.find(stop, num_known)) >= 0), None)

    return swapped(response, "first_stop", behind)


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


def drawn_tokens() -> list[str]:
    """Every token is one that min-p, then top-k, then top-p leave."""
    found = []
    fields = {"temperature": 2.0, "min_p": 0.4, "top_p": 0.6}
    asks = [Ask(name=f"{seed}", prompt=PROMPTS[seed % 4], params=drawn(6, seed=seed, **fields)) for seed in range(12)]
    outputs, violations = run_asks(engine := tiny_engine(overlap=False), asks)
    for ask in asks:
        tokens = outputs[ask.name].outputs[0].token_ids
        for i, token in enumerate(tokens):
            kept = filtered(dense_logits(engine.worker.model.decoder, (*ask.prompt, *tokens[:i]))[0], ask.params)
            if token not in kept:
                found.append(f"request {ask.name}: token {i} is {token}; wanted one of {kept}")
    return found + violations


def filtered(logits_V: torch.Tensor, params: SamplingParams) -> list[int]:
    """What min-p and then top-p leave."""
    weights, ids = (logits_V.double() / params.temperature).softmax(dim=-1).sort(descending=True)
    left = weights[weights >= params.min_p * weights[0]]
    above = left.cumsum(dim=0) - left
    return ids[: len(left)][above < params.top_p * left.sum() + CLOSE].tolist()


def early_ends() -> list[str]:
    """The model's end token, most likely of all, comes out after `min_tokens` though it is ignored."""
    engine, end = tiny_engine(overlap=False), 9
    engine.reader.tokenizer = IdsOnlyTokenizer([end])
    ask = Ask(name="ignores", prompt=PROMPTS[0], params=greedy(5, min_tokens=3, logit_bias={end: 100.0}))
    outputs, found = run_asks(engine, [ask])
    at = [i for i, token in enumerate(outputs["ignores"].outputs[0].token_ids) if token == end]
    return found if at == [3, 4] else [*found, f"the end token came at {at}"]


def stop_across_min_tokens() -> list[str]:
    """A stop string that the token after `min_tokens` completes ends the text, though it began before."""
    tokenizer = embedded_reader().tokenizer
    ids = tokenizer.encode("one two three four", add_special_tokens=False)
    text, border = tokenizer.decode(ids), len(tokenizer.decode(ids[:2]))
    params = SamplingParams(stop=text[border - 2 : border + 2], min_tokens=2)
    request = Request(id="r", prompt=(5,), params=params, max_new_tokens=16, arrival=0)
    made = ResponseBuilder.begin(request, None, tokenizer, streams=True)
    for token in ids:
        request.output.append(token)
        made.take(token, ())
        if made.ended_by is not None:
            break
    return [] if made.text == text[: border - 2] else [f"the text is {made.text!r}"]


FIELD_MUTANTS: tuple[Mutant, ...] = (
    words_a_token_late,
    mask_kept_in_a_row,
    words_forgotten,
    prompt_logprobs_off_by_one,
    prefix_read_for_prompt_logprobs,
    min_p_after_top_p,
    ignored_end_comes_early,
    stop_begun_too_early,
)

FIELD_CHECKERS: tuple[Checker, ...] = (
    Checker(name="forbidden tokens", run=forbidden_tokens, oracles=(FIELDS_BY_HAND,)),
    Checker(name="prompt logprobs", run=prompt_logprobs, oracles=(FIELDS_BY_HAND,)),
    Checker(name="drawn tokens", run=drawn_tokens),
    Checker(name="early ends", run=early_ends),
    Checker(name="stop across min_tokens", run=stop_across_min_tokens),
)
