"""Requests with forms for the tiny engine: a vocabulary of characters, and a schedule that has everything.

The schedule has regular expressions, choices and plain requests beside each other, greedy and drawn, with bias and
penalties, shared prefixes, and one that is given up half-way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

from playhead.engine.engine import Engine
from playhead.engine.front import CheckedPrompt
from playhead.grammar.compiler import GrammarCompiler, Vocabulary
from playhead.kv.plan import KVLimits
from playhead.sampling_params import SamplingParams
from playhead.structured_outputs import StructuredOutputs
from playhead.testing.tiny_engine import Ask, drawn, greedy, run_asks, tiny_engine

END = 0
TEXTS = ("", *"abcdefghijklmnopqrstuvwxyz0123456789-:,.", *("ab", "bc", "abc", "12", "00", "no", "yes", "one"))
"""The text of each token of the tiny model; tokens after these have none."""
VOCAB_SIZE = 64
FORMED_LIMITS = KVLimits(max_context_tokens=32, max_running=3, chunk_tokens=8)
FORMED_BYTES = 10_240


def tiny_vocabulary() -> Vocabulary:
    texts = [text.encode() for text in TEXTS]
    texts += [b""] * (VOCAB_SIZE - len(texts))
    return Vocabulary(
        token_bytes=texts, eos_ids=frozenset({END}), special_ids=frozenset({END}), encode=longest_tokens_first
    )


def longest_tokens_first(text: str) -> list[int]:
    found = []
    while text:
        token = max((token for token in TEXTS if token and text.startswith(token)), key=len)
        found.append(TEXTS.index(token))
        text = text[len(token) :]
    return found


@cache
def tiny_grammars() -> GrammarCompiler:
    """Without a limit of time: what is said of a form should not depend on the machine."""
    return GrammarCompiler(tiny_vocabulary, limit_s=1e6)


def formed(num_tokens: int, *, seed: int | None = None, **more: object) -> SamplingParams:
    """Parameters of a request with a form: regex=..., choice=... and other fields."""
    form = {name: more.pop(name) for name in ("regex", "choice", "grammar", "json") if name in more}
    return SamplingParams(
        temperature=0 if seed is None else 1.5,
        seed=seed,
        max_tokens=num_tokens,
        stop_token_ids=[END],  # the tiny model's tokenizer knows no end
        structured_outputs=StructuredOutputs(**form),  # type: ignore[arg-type]
        **more,  # type: ignore[arg-type]
    )


FORMED: tuple[Ask, ...] = (
    Ask(name="digits", prompt=(7, 8, 9, 10, 11), params=formed(14, regex=r"[0-9]{3}-[0-9]{4}")),
    Ask(name="choice", prompt=tuple(range(20, 34)), params=formed(8, seed=1, choice=["yes", "no", "none"]), comes=1),
    Ask(name="plain", prompt=(*range(20, 32), 1), params=drawn(14, seed=2), comes=2),
    Ask(name="letters", prompt=(40, 41, 42), params=formed(20, seed=3, regex=r"(abc|[a-f]{2}:){4}[x-z]+"), comes=3),
    Ask(name="biased", prompt=(5, 6), params=formed(18, regex=r"[a-m0-9]{12}", logit_bias={3: 4.0, 30: 3.0}), comes=4),
    Ask(name="given up", prompt=(50, 51), params=formed(20, seed=4, regex="[a-z]*"), comes=5, goes=12),
    Ask(name="long", prompt=tuple(range(20, 33)), params=formed(16, seed=5, regex=r"[a-z]{10}(12|34)"), comes=6),
    Ask(name="filtered", prompt=(9, 8, 7), params=formed(16, seed=6, regex=r"([0-9],){5}", top_k=3), comes=8),
    Ask(name="penalised", prompt=(1, 2), params=formed(16, regex="[ab0]{12}", frequency_penalty=1.0), comes=9),
    Ask(name="greedy", prompt=(60, 61, 62), params=greedy(9), comes=10),
)

SHRINKING: tuple[Ask, ...] = (Ask(name="short", prompt=(5, 6), params=greedy(4)), FORMED[0])
"""A batch that loses its first request while a grammar limits its second one."""


def formed_engine(*, overlap: bool, kv_memory_bytes: int = FORMED_BYTES, chunk_tokens: int = 8) -> Engine:
    """Memory for two of the long requests: the others are preempted now and then."""
    limits = replace(FORMED_LIMITS, chunk_tokens=chunk_tokens)
    return tiny_engine(overlap=overlap, kv_memory_bytes=kv_memory_bytes, limits=limits)


FORCED: tuple[Ask, ...] = (
    # No two tokens of these texts make a longer one, so there is one way to cut them.
    Ask(name="prefix", prompt=(7, 8, 9), params=formed(24, seed=1, regex=r"k-x:q,z\.[0-9]{3}w-v:[a-z0-9]{8}")),
    Ask(name="whole", prompt=(5, 6), params=formed(24, choice=["k-x:q,z.w-v:", "q,z.k-x:w"]), comes=1),
    Ask(name="plain", prompt=(9, 10, 11), params=drawn(12, seed=2), comes=2),
    Ask(name="cut short", prompt=(3, 4), params=formed(6, choice=["k-x:q,z.w-v:"]), comes=3),
    Ask(name="end", prompt=(1, 2, 3), params=formed(24, seed=3, regex="[a-f]{3}-x:q,z"), comes=4),
)
"""Answers with parts that their grammars leave no choice about."""


def forcing_engine(*, forced_tokens: bool, overlap: bool = True, chunk_tokens: int = 4) -> Engine:
    """With forced tokens or without. Chunks are short, so that what is forced takes several steps."""
    engine = formed_engine(overlap=overlap, kv_memory_bytes=1 << 20, chunk_tokens=chunk_tokens)
    engine.config = replace(engine.config, forced_tokens=forced_tokens)
    return engine


def checked_ask(engine: Engine, ask: Ask) -> CheckedPrompt:
    """The request as an engine takes it: the tiny model has no tokenizer, so its grammar is made here."""
    plain = engine.reader.check(ask.prompt, replace(ask.params, structured_outputs=None))
    form = ask.params.structured_outputs
    grammar = None if form is None else tiny_grammars().compile(form)
    return replace(plain, params=ask.params, grammar=grammar, bad_words=ask.bad_words)


def formed_alone() -> dict[str, list[int]]:
    """What each request gets with an engine to itself, no step overlapped and nothing cached."""
    engine = tiny_engine(overlap=False, prefix_caching=False, limits=FORMED_LIMITS)
    found: dict[str, list[int]] = {}
    for ask in FORMED:
        finished, _ = run_asks(engine, [replace(ask, comes=0, goes=None)], check=checked_ask)
        found |= {name: output.outputs[0].token_ids for name, output in finished.items()}
    return found


def text_of(tokens: Sequence[int]) -> str:
    return "".join(TEXTS[token] if token < len(TEXTS) else "?" for token in tokens)


def wrong_answers(found: Mapping[str, Sequence[int]], wanted: Mapping[str, Sequence[int]]) -> list[str]:
    """Answers that differ from those of the requests alone, and answers that do not have their form."""
    wrong = [
        f"{name}: {found.get(name)}, alone {tokens}" for name, tokens in wanted.items() if found.get(name) != tokens
    ]
    for ask in FORMED:
        form, tokens = ask.params.structured_outputs, found.get(ask.name, ())
        if form is None or not tokens or tokens[-1] != END:
            continue
        pattern = form.regex or "|".join(map(re.escape, form.choice or ()))
        if not re.fullmatch(pattern, text_of(tokens)):
            wrong.append(f"{ask.name}: {text_of(tokens)!r} is not {pattern!r}")
    return wrong
