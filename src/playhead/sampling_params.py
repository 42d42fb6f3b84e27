"""How a request wants its tokens chosen, checked when it is said. Names and defaults are vLLM's.

`SamplingParams` is also the table of sampling parameters: each field carries its `Parameter`. Its check, the sampler's
inputs, the reading of generation_config.json and the command line are made from that.

A value is taken as it is or refused: nothing is rounded, parsed or cut to fit. A numpy scalar counts as the number it
is. `check_against` adds the limits that only a model knows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import Enum, IntEnum
from operator import attrgetter
from typing import Any, NoReturn, Self

from playhead.errors import AbsentFeature, RequestError, did_you_mean, shown
from playhead.sampling_values import allowed_ids, biases, refused, texts, token_ids
from playhead.settings import METADATA_KEY, Setting, check_values, declare, settings_of
from playhead.structured_outputs import StructuredOutputs, structured_outputs

GREEDY_BELOW = 1e-5  # vLLM's bound: dividing by less only magnifies rounding
MAX_TEMPERATURE = 1e6  # flatter than this is uniform, and float32 still divides by it
# Below this float32 turns a logit into infinity, and infinity times zero into a NaN that wins every argmax.
SMALLEST_REPETITION = 1e-6
MAX_REPETITION = 1e6
MAX_LOGPROBS = 20
MAX_SAMPLES = 1 << 14  # vLLM's bound
PENALTY_BOUND = 2.0

NO_BEAMS = "There is no beam search. Ask for n samples with logprobs=0 and compare their cumulative_logprob."
UNSUPPORTED = {
    "best_of": "Ask for n samples with logprobs=0 and keep the one with the best cumulative_logprob.",
    **dict.fromkeys(("use_beam_search", "length_penalty", "early_stopping"), NO_BEAMS),
    "logits_processors": "A captured graph cannot call Python. Use logit_bias, allowed_token_ids or bad_words.",
    "guided_decoding": "It is called structured_outputs now: structured_outputs=StructuredOutputs(json=...).",
    "extra_args": "Nothing here would read them. Leave them out.",
    "flat_logprobs": "Logprobs are tables by token id. Leave it out.",
    "logprob_token_ids": "Logprobs are those of the chosen and of the best tokens. Use logprobs.",
    "skip_reading_prefix_cache": "Give the prompt a cache_salt of its own, which shares no cached prefix.",
    "thinking_token_budget": "Reasoning has no bound of its own. Use max_tokens, which bounds the whole answer.",
}
"""Fields of vLLM's that are refused, each with what to do instead."""
ABSENT = {
    "BeamSearchParams": NO_BEAMS,
    "GuidedDecodingParams": "It is called StructuredOutputs here: from playhead import StructuredOutputs.",
}
"""Names that scripts for vLLM import from its module of the same name, and why they are not here."""


class SamplingKind(IntEnum):
    """What a step computes between logits and tokens. Each kind serves every request that an earlier kind serves.

    A graph is captured for one kind. A later kind than a request needs costs time and changes no bit of its tokens.
    """

    GREEDY = 0
    """The best token of every request."""
    DRAWN = 1
    """Also the best token of logits / temperature + noise."""
    FILTERED = 2
    """Also filters, below which nothing is drawn."""
    EVERYTHING = 3
    """Also bias, penalties, forbidden tokens and logprobs, which greedy requests may have too."""


class RequestOutputKind(Enum):
    """What the outputs of a stream hold."""

    CUMULATIVE = 0
    """Everything so far."""
    DELTA = 1
    """What is new since the output before."""
    FINAL_ONLY = 2
    """There is one output, at the end."""


class DefaultInt(int):
    """A number that nobody asked for: where there is no room for it, it gives way instead of being refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter(Setting):
    """One row of the table of sampling parameters: its range and its flag as a `Setting` has them, and what it does.

    `kind` is the least kind of sampling that serves a request with the parameter on. With `number` the sampler reads
    one number per request, which `number` makes of the value. It is a float32 or an int64, as `off` is a float or an
    int. The parameter is off where the number, or else the value, equals `off`. Rows without a request hold `off`.
    """

    help: str = ""
    """Without a text there is no flag."""
    kind: SamplingKind = SamplingKind.GREEDY
    off: Any = None
    number: Callable[[Any], float] | None = None
    in_checkpoints: bool = False
    """A model's generation_config.json may set it, under the same name."""

    def is_on(self, value: Any) -> bool:
        return bool((value if self.number is None else self.number(value)) != self.off)


PENALTY = Parameter(low=-PENALTY_BOUND, high=PENALTY_BOUND, kind=SamplingKind.EVERYTHING, off=0.0, number=float)


@dataclass(slots=True, kw_only=True)  # mutable: scripts for vLLM set fields; a request keeps a copy, checked anew
class SamplingParams:
    """One request's options. Temperature 0 is greedy; everything else is off by default, as in vLLM.

    `top_k` is off with 0 or -1, `top_p` with 1, `min_p` with 0, `repetition_penalty` with 1. `max_tokens=None`:
    everything the context has room for. Not given: 16, or less if the context has less room. `logprobs=0` reports the
    chosen token only; `prompt_logprobs` reports the tokens of the prompt in the same way.

    `bad_words` never come out: the last token of a word is impossible after the tokens before it. `allowed_token_ids`
    are the only ones that come out. `truncate_prompt_tokens=k` keeps the last k tokens of a prompt; -1 keeps as many
    as the context has room for beside `max_tokens`. With `detokenize=False` there is no text. `structured_outputs` says
    what form the whole answer has; an answer that `max_tokens` cuts short is the beginning of such a form.
    `spaces_between_special_tokens` is vLLM's for tokenizers that add such spaces; none of those read here does.

    >>> params = SamplingParams(temperature=0.8, top_p=0.95, seed=7, max_tokens=4, ignore_eos=True)
    >>> first, again = (llm.generate("The whale", params)[0].outputs[0].token_ids for _ in range(2))
    >>> len(first), first == again
    (4, True)
    """

    n: int = declare(
        1, Parameter(low=1, high=MAX_SAMPLES, group="output", help="samples; several do not stream", aliases=("-n",))
    )
    temperature: float = declare(
        1.0,
        Parameter(
            low=0,
            high=MAX_TEMPERATURE,
            kind=SamplingKind.DRAWN,
            off=0.0,
            number=lambda value: value if value >= GREEDY_BELOW else 0.0,
            in_checkpoints=True,
            group="sampling",
            help="0 is greedy",
            aliases=("-t",),
        ),
    )
    top_k: int = declare(
        0,
        Parameter(
            low=-1,
            kind=SamplingKind.FILTERED,
            off=0,
            number=lambda value: max(value, 0),
            in_checkpoints=True,
            group="sampling",
            help="sample from the best N; 0 is all",
        ),
    )
    top_p: float = declare(
        1.0,
        Parameter(
            low=0,
            above=True,
            high=1,
            kind=SamplingKind.FILTERED,
            off=1.0,
            number=float,
            in_checkpoints=True,
            group="sampling",
            help="sample from this share of the probability",
        ),
    )
    min_p: float = declare(
        0.0,
        Parameter(
            low=0,
            high=1,
            kind=SamplingKind.FILTERED,
            off=-math.inf,
            # The host's logarithm: on N values the device's rounding may depend on N.
            number=lambda value: math.log(value) if value > 0 else -math.inf,
            in_checkpoints=True,
            group="sampling",
            help="drop tokens below X times the best one",
        ),
    )
    repetition_penalty: float = declare(
        1.0,
        Parameter(
            low=0,
            above=True,
            high=MAX_REPETITION,
            kind=SamplingKind.EVERYTHING,
            off=1.0,
            number=lambda value: max(float(value), SMALLEST_REPETITION),
            in_checkpoints=True,
            group="sampling",
            help="above 1, tokens of prompt and answer become less likely",
        ),
    )
    presence_penalty: float = declare(
        0.0, replace(PENALTY, group="sampling", help="above 0, tokens of the answer become less likely")
    )
    frequency_penalty: float = declare(
        0.0, replace(PENALTY, group="sampling", help="the same, by how often they are in it")
    )
    logit_bias: Mapping[int, float] | None = field(
        default_factory=dict,
        metadata={METADATA_KEY: Parameter(take=biases, kind=SamplingKind.EVERYTHING, off={})},
    )
    seed: int | None = declare(
        None, Parameter(off=0, number=lambda value: value or 0, group="sampling", help="same seed, same tokens")
    )
    logprobs: int | None = declare(
        None,
        Parameter(
            low=0,
            high=MAX_LOGPROBS,
            kind=SamplingKind.EVERYTHING,
            group="output",
            help="show each token's, and the best N",
        ),
    )
    prompt_logprobs: int | None = declare(None, Parameter(low=0, high=MAX_LOGPROBS))
    stop: Sequence[str] | None = declare(
        (), Parameter(take=texts, group="length", help="end before this text; may be repeated")
    )
    """A string alone counts as a sequence of one."""
    stop_token_ids: Sequence[int] | None = declare((), Parameter(take=token_ids))
    include_stop_str_in_output: bool = declare(False, Parameter())
    bad_words: Sequence[str] | None = declare((), Parameter(take=texts, kind=SamplingKind.EVERYTHING, off=()))
    allowed_token_ids: Sequence[int] | None = declare(None, Parameter(take=allowed_ids, kind=SamplingKind.EVERYTHING))
    structured_outputs: StructuredOutputs | None = declare(None, Parameter(take=structured_outputs))
    """The form that the answer must have. A dict counts as the `StructuredOutputs` with these fields."""
    min_tokens: int = declare(0, Parameter(low=0))
    max_tokens: int | None = declare(
        DefaultInt(16), Parameter(low=1, group="length", help="generate at most", aliases=("--max-new-tokens",))
    )
    ignore_eos: bool = declare(False, Parameter(group="length", help="go on after the model's end token"))
    skip_special_tokens: bool = declare(True, Parameter())
    spaces_between_special_tokens: bool = declare(True, Parameter())
    detokenize: bool = declare(True, Parameter())
    truncate_prompt_tokens: int | None = declare(None, Parameter(low=-1))
    output_kind: RequestOutputKind = declare(RequestOutputKind.CUMULATIVE, Parameter())

    def __new__(cls, *values: object, **given: object) -> Self:
        # Before __init__, whose TypeError would not say what there is instead. Type checkers read __init__.
        if not given.keys() <= PARAMETERS.keys():
            raise unknown(next(name for name in given if name not in PARAMETERS))
        if values:
            raise RequestError("SamplingParams", f"{len(values)} values without a name", "names", "Write name=value.")
        return object.__new__(cls)

    def __post_init__(self) -> None:
        self._check(VALUES_OF(self))

    def _check(self, values: tuple[Any, ...]) -> None:
        """Check all fields, whose values these are."""
        check_values(self, SAMPLING_SETTINGS, values, refused)
        if self.truncate_prompt_tokens == 0:
            raise refused("truncate_prompt_tokens", 0, "at least 1, or -1 for as many as fit")
        if self.stop and not self.detokenize:
            raise refused("detokenize", False, "True, because stop strings are found in the text")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise refused("min_tokens", self.min_tokens, f"at most max_tokens, {self.max_tokens}")
        if self.ignore_eos and self.structured_outputs is not None:
            raise refused("ignore_eos", True, "False, because the end token is how a structured answer ends")

    @classmethod
    def from_optional(cls, **given: Any) -> SamplingParams:
        """vLLM's: a field given as None counts as left out, unless None has a meaning."""
        kept = {name: value for name, value in given.items() if value is not None or name in OPTIONAL}
        return cls(**kept)

    def clone(self) -> SamplingParams:
        """A copy, checked anew: fields may have been set since this was made."""
        copied = object.__new__(SamplingParams)  # `__init__` by name takes as long as the check
        values = VALUES_OF(self)
        for put, value in zip(PUT_VALUES, values, strict=True):
            put(copied, value)
        copied._check(values)
        return copied

    @property
    def is_greedy(self) -> bool:
        """True if no random number has a say."""
        return self.temperature < GREEDY_BELOW

    def values(self) -> dict[str, Any]:
        """Every parameter's value, by name."""
        return dict(zip(PARAMETERS, VALUES_OF(self), strict=True))

    @property
    def kind(self) -> SamplingKind:
        """The least kind of sampling that serves this request. A filter never removes the best token."""
        kind = SamplingKind.GREEDY
        for value, (usual, one) in zip(KIND_VALUES_OF(self), KIND_PARAMETERS, strict=True):
            if value is not usual and one.kind > kind and one.is_on(value):
                kind = one.kind
        return SamplingKind.GREEDY if self.is_greedy and kind < SamplingKind.EVERYTHING else kind

    def check_against(self, vocab_size: int, prompt_len: int, max_context: int) -> int:
        """How many tokens this request may generate after its prompt; RequestError if it cannot run on this model.

        With a context of 100 and a prompt of 90 tokens, `max_tokens=None` is 10, and so is the default; 16 is refused.
        """
        if prompt_len < 1:
            raise RequestError("prompt", f"{prompt_len} tokens", "at least 1", "Send a prompt.")
        room = max_context - prompt_len
        if room < 1:
            raise RequestError(
                "prompt",
                f"{prompt_len} tokens",
                f"at most {max_context - 1}, which leaves one of the context of {max_context}",
                "Shorten the prompt.",
            )
        num_wanted = room if self.max_tokens is None else self.max_tokens
        if isinstance(num_wanted, DefaultInt):
            num_wanted = min(int(num_wanted), room)
        for name, number_of, fix in (
            ("min_tokens", self.min_tokens, "Ask for fewer tokens or shorten the prompt."),
            ("max_tokens", num_wanted, "Ask for fewer tokens, or None for all there are, or shorten the prompt."),
        ):
            if number_of > room:
                found = f"{shown(number_of)} after a prompt of {prompt_len} tokens"
                limit = f"at most {room}, what the context of {max_context} leaves"
                raise RequestError(f"sampling field {name!r}", found, limit, fix)
        for name, ids in (
            ("stop_token_ids", self.stop_token_ids),
            ("logit_bias", self.logit_bias),
            ("allowed_token_ids", self.allowed_token_ids),
        ):
            if ids:
                check_vocabulary(name, ids, vocab_size)
        return num_wanted

    def num_prompt_tokens(self, prompt_len: int, max_context: int) -> int:
        """How many of a prompt's last tokens are read, as `truncate_prompt_tokens` says.

        With a context of 100 and 16 tokens to generate, -1 keeps 84 of a prompt of 500.
        """
        most = self.truncate_prompt_tokens
        if most is None:
            return prompt_len
        if most == -1:
            most = max(1, max_context - (1 if self.max_tokens is None else self.max_tokens))
        return min(prompt_len, most)


StructuredOutputsParams = StructuredOutputs  # scripts for vLLM import this name from here

SAMPLING_SETTINGS = settings_of(SamplingParams)
PARAMETERS: dict[str, Parameter] = {one.name: one.metadata[METADATA_KEY] for one in fields(SamplingParams)}
"""The table of sampling parameters, by name."""
VALUES_OF = attrgetter(*PARAMETERS)
"""All values at once."""
PUT_VALUES: tuple[Callable[[SamplingParams, Any], None], ...] = tuple(
    vars(SamplingParams)[name].__set__ for name in PARAMETERS
)
"""The same way back, one by one."""
KIND_SETTINGS = tuple(one for one in SAMPLING_SETTINGS if PARAMETERS[one.name].kind > SamplingKind.GREEDY)
KIND_VALUES_OF = attrgetter(*(one.name for one in KIND_SETTINGS))
KIND_PARAMETERS = tuple(
    (MISSING if PARAMETERS[one.name].is_on(one.default) else one.default, PARAMETERS[one.name]) for one in KIND_SETTINGS
)
"""Each parameter that some kind of sampling is for, after the default that needs no look, if it is off."""
OPTIONAL = {one.name for one in SAMPLING_SETTINGS if one.is_optional}


def __getattr__(name: str) -> NoReturn:
    """A name that is not there. One of vLLM's says why."""
    if name in ABSENT:
        raise AbsentFeature(f"playhead.sampling_params.{name}", ABSENT[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def unknown(name: str) -> RequestError:
    """The error for a field that there is not."""
    if name in UNSUPPORTED:
        return RequestError(f"sampling field {name!r}", "not supported", "", UNSUPPORTED[name])
    fix = did_you_mean(name, PARAMETERS, "Remove it.")
    return RequestError(f"sampling field {name!r}", "no such field", f"one of {', '.join(PARAMETERS)}", fix)


def check_vocabulary(name: str, ids: Iterable[int], vocab_size: int) -> None:
    """Refuse a token id this model does not have."""
    for token in ids:
        if token >= vocab_size:
            raise RequestError(
                f"sampling field {name!r}",
                f"token id {shown(token)}",
                f"ids in [0, {vocab_size}), the vocabulary",
                "Take ids from this model's tokenizer.",
            )
