"""Requests of the tiny model that are cut off and go on with another engine's output so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from playhead.engine.engine import Engine
from playhead.engine.front import CheckedPrompt, RequestOptions
from playhead.engine.response import ResponseBuilder
from playhead.outputs import CompletionOutput
from playhead.testing.tiny_engine import Ask, checked_ask, drawn, greedy, run_asks, tiny_engine

Check = Callable[[Engine, Ask], CheckedPrompt]
ROUNDING = 1e-4
EVEN = tuple(range(0, 64, 2))

CASES: Mapping[str, Ask] = {
    ask.name: ask
    for ask in (
        Ask(name="greedy", prompt=(7, 8, 9, 10, 11), params=greedy(12)),
        Ask(name="drawn", prompt=(20, 21, 22), params=drawn(12, seed=1)),
        Ask(name="filtered", prompt=(20, 21, 23), params=drawn(12, seed=2, top_k=8, top_p=0.9)),
        Ask(
            name="penalties", prompt=(3, 4, 3), params=drawn(12, seed=3, frequency_penalty=1.5, repetition_penalty=1.3)
        ),
        Ask(name="bad words", prompt=(5, 6), params=drawn(12, seed=4), bad_words=((9,), (1, 2), (30, 31, 32))),
        Ask(name="early end", prompt=(8, 9), params=drawn(12, seed=5, min_tokens=9, stop_token_ids=EVEN)),
        Ask(name="stop token", prompt=(5, 6), params=drawn(20, seed=4, stop_token_ids=(2, 3, 5), min_tokens=8)),
        Ask(name="logprobs", prompt=(5, 9), params=drawn(10, seed=6, logprobs=3)),
    )
}


def plain_engine(*, kv_memory_bytes: int = 1 << 20) -> Engine:
    """An engine whose steps overlap."""
    return tiny_engine(overlap=True, kv_memory_bytes=kv_memory_bytes)


def undisturbed(engine: Engine, ask: Ask, check: Check = checked_ask) -> CompletionOutput:
    """What the request gets when nothing happens to it."""
    finished, _ = run_asks(engine, [replace(ask, comes=0)], check=check)
    return finished[ask.name].outputs[0]


def resumed(
    engine: Engine, ask: Ask, whole: CompletionOutput, *, cut: int, check: Check = checked_ask
) -> ResponseBuilder:
    """The request as it goes on after the first `cut` tokens of its whole output. Nothing runs yet."""
    tables = None if whole.logprobs is None else whole.logprobs[:cut]
    so_far = replace(whole, text="", token_ids=whole.token_ids[:cut], logprobs=tables, finish_reason=None)
    return engine.submit(ask.name, check(engine, ask), RequestOptions(resume_from=(so_far,)))


def differences_at(
    engine: Engine, ask: Ask, whole: CompletionOutput, cut: int, check: Check = checked_ask
) -> list[str]:
    """How the request that goes on after `cut` tokens differs from the one that was left alone."""
    response = resumed(engine, ask, whole, cut=cut, check=check)
    while engine.has_work:
        engine.step()
    found = response.completion()
    return [] if is_same(found, whole) else [f"{ask.name}, cut after {cut}: {found}; undisturbed {whole}"]


def is_same(found: CompletionOutput, wanted: CompletionOutput) -> bool:
    """Equal tokens, texts, ends and ranks; logprobs within rounding: a prompt's sums are added in another order."""
    if rounded(found) != rounded(wanted):
        return False
    pairs = zip(found.logprobs or (), wanted.logprobs or (), strict=True)
    return all(abs(one[token].logprob - other[token].logprob) < ROUNDING for one, other in pairs for token in one)


def rounded(output: CompletionOutput) -> tuple[CompletionOutput, list[list[tuple[int, int | None, str | None]]]]:
    """An output without the numbers that rounding changes."""
    tables = [[(token, one.rank, one.decoded_token) for token, one in table.items()] for table in output.logprobs or ()]
    return replace(output, logprobs=None, cumulative_logprob=None), tables
