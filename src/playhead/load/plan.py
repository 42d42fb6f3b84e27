"""Requests of a seed: when each is sent, what its prompt is, how long its answer is to be."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files

import numpy as np

from playhead.load.exchange import PlannedRequest
from playhead.load.spec import MAX_REQUESTS, Arrivals, Dataset, Endpoint, LengthKind, LoadSpec, PromptKind

DEFAULT_REQUESTS = 100
LOWEST_ID = 16  # below are the special tokens of most vocabularies
TURN_SHARE = 0.6  # of turns that are followed by another one: conversations have 2.5 turns in the mean
MAX_TURNS = 8
NUM_TALKING = 8  # conversations whose turns are mixed

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """A prompt as turns of user, assistant, user, ...: each a text, or ids. `prefix` stands before the first."""

    turns: tuple[str | Tokens, ...]
    output_len: int
    prefix: str | Tokens | None = None

    @property
    def input_len(self) -> int:
        return sum(size_of(part) for part in (self.prefix, *self.turns) if part is not None)


def plan_requests(spec: LoadSpec, rate: float, *, model: str, endpoint: Endpoint) -> list[PlannedRequest]:
    """The requests of one run."""
    moments = np.random.default_rng((spec.seed, 0))
    at_s = arrival_times(spec, rate, moments)
    prompts = prompts_of(spec, len(at_s))
    return [
        PlannedRequest(
            at_s=float(when),
            body=body_of(spec, prompt, model=model, endpoint=endpoint, seed=spec.seed + i),
            input_len=prompt.input_len,
            output_len=prompt.output_len,
            is_warm_up=bool(when < spec.warmup),
        )
        for i, (when, prompt) in enumerate(zip(at_s, prompts, strict=True))
    ]


def arrival_times(spec: LoadSpec, rate: float, rng: np.random.Generator) -> list[float]:
    """Seconds from the start, ascending. With a duration: all that fall into it and the warm-up before it."""
    if math.isinf(rate):
        return [0.0] * (spec.num_prompts or DEFAULT_REQUESTS)
    ends_s = math.inf if spec.duration is None else spec.warmup + spec.duration
    most = spec.num_prompts or (DEFAULT_REQUESTS if spec.duration is None else math.inf)
    times: list[float] = []
    num_counted = 0  # requests of the warm-up are not among those that were asked for
    for when in moments_of(spec, rate, rng):
        if when >= ends_s or num_counted >= most or len(times) >= MAX_REQUESTS:
            break
        times.append(when)
        num_counted += when >= spec.warmup
    return times


def moments_of(spec: LoadSpec, rate: float, rng: np.random.Generator) -> Iterator[float]:
    """Moments without an end."""
    group = spec.burst_size if spec.arrivals is Arrivals.BURST else 1
    now = 0.0
    while True:
        gap = group / rate
        now += gap if spec.arrivals is Arrivals.CONSTANT else float(rng.exponential(gap))
        for _ in range(group):
            yield now


def draw_lengths(spec: LoadSpec, middle: int, most: int, count: int, rng: np.random.Generator) -> list[int]:
    """How long each is: at least 1, at most `most`."""
    if spec.lengths is LengthKind.FIXED:
        drawn = np.full(count, middle)
    elif spec.lengths is LengthKind.UNIFORM:
        low, high = (int(middle * (1 + sign * spec.range_ratio)) for sign in (-1, 1))
        drawn = rng.integers(low, high + 1, count)
    else:
        drawn = np.rint(rng.lognormal(math.log(middle), spec.sigma, count)).astype(int)
    return [min(most, max(1, int(one))) for one in drawn]


def prompts_of(spec: LoadSpec, count: int) -> list[Turns]:
    """The prompts of a run, in the order in which they are sent."""
    lengths, contents = np.random.default_rng((spec.seed, 1)), np.random.default_rng((spec.seed, 2))
    source = Words() if spec.prompts is PromptKind.TEXT else Ids(spec.vocab_size)
    if spec.dataset is Dataset.MIX:
        made = mixed(spec, count, source, (lengths, contents))
    else:
        inputs = draw_lengths(spec, spec.input_len, spec.max_input_len, count, lengths)
        outputs = draw_lengths(spec, spec.output_len, spec.max_output_len, count, lengths)
        pairs = zip(inputs, outputs, strict=True)
        made = [Turns(turns=(source.draw(size, contents),), output_len=answer) for size, answer in pairs]
    if not spec.prefix_len:
        return made
    prefixes = [source.draw(spec.prefix_len, contents) for _ in range(spec.num_prefixes)]
    chosen = contents.integers(0, len(prefixes), count)
    return [
        Turns(prefix=prefixes[i], turns=turns.turns, output_len=turns.output_len)
        for i, turns in zip(chosen, made, strict=True)
    ]


def mixed(
    spec: LoadSpec, count: int, source: Words | Ids, draws: tuple[np.random.Generator, np.random.Generator]
) -> list[Turns]:
    """Turns of conversations, several of which go on at a time. A conversation that grows too long ends."""
    lengths, contents = draws
    wide = replace(spec, lengths=LengthKind.LOGNORMAL)
    talks: list[list[str | Tokens]] = [[] for _ in range(NUM_TALKING)]
    made: list[Turns] = []
    while len(made) < count:
        talk = talks[int(lengths.integers(len(talks)))]
        (question,) = draw_lengths(wide, spec.input_len, spec.max_input_len, 1, lengths)
        (answer,) = draw_lengths(wide, spec.output_len, spec.max_output_len, 1, lengths)
        if sum(map(size_of, talk)) + question > spec.max_input_len:
            talk.clear()
        talk.append(source.draw(question, contents))
        made.append(Turns(turns=tuple(talk), output_len=answer))
        if len(talk) >= 2 * MAX_TURNS or lengths.random() > TURN_SHARE:
            talk.clear()
        else:
            talk.append(source.draw(answer, contents))
    return made


class Words:
    """Passages of the text that comes with the package. The first words are random: no two prompts begin alike."""

    def __init__(self) -> None:
        packed = (files("playhead") / "assets" / "load" / "text.txt.gz").read_bytes()
        self._words = gzip.decompress(packed).decode().split()

    def draw(self, size: int, rng: np.random.Generator) -> str:
        words, num_random = self._words, min(size, 3)
        at = int(rng.integers(len(words)))
        first = [words[int(i)] for i in rng.integers(0, len(words), num_random)]
        return " ".join([*first, *(words[(at + i) % len(words)] for i in range(size - num_random))])


class Ids:
    """Random token ids."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def draw(self, size: int, rng: np.random.Generator) -> Tokens:
        return tuple(rng.integers(min(LOWEST_ID, self._vocab_size - 1), self._vocab_size, size).tolist())


def size_of(part: str | Tokens) -> int:
    return len(part.split()) if isinstance(part, str) else len(part)


def joined(parts: Sequence[str | Tokens]) -> str | list[int]:
    """Parts as one prompt: texts as paragraphs, ids one after the other."""
    texts = [part for part in parts if isinstance(part, str)]
    return "\n\n".join(texts) if texts else [one for part in parts if not isinstance(part, str) for one in part]


def body_of(spec: LoadSpec, prompt: Turns, *, model: str, endpoint: Endpoint, seed: int) -> bytes:
    """The JSON of a request. `ignore_eos` is left out where it is not asked for: some servers do not know it."""
    fields: dict[str, object] = {
        "model": model,
        "max_tokens": prompt.output_len,
        "temperature": spec.temperature,
        "seed": seed,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if spec.ignore_eos:
        fields["ignore_eos"] = True
    if endpoint is Endpoint.CHAT:
        fields["messages"] = messages_of(prompt)
    else:
        fields["prompt"] = joined([*(() if prompt.prefix is None else (prompt.prefix,)), *prompt.turns])
    return json.dumps(fields).encode()


def messages_of(prompt: Turns) -> list[dict[str, object]]:
    """Turns as messages, the prefix as what the system says."""
    said = [] if prompt.prefix is None else [("system", prompt.prefix)]
    said += [(("user", "assistant")[i % 2], turn) for i, turn in enumerate(prompt.turns)]
    return [{"role": role, "content": content} for role, content in said]
