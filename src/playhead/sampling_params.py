"""How a request wants its tokens chosen, checked when it is said. Names and defaults are vLLM's.

A value is taken as it is or refused: nothing is rounded, parsed or cut to fit. `check_against` adds the limits that
only a model knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from playhead.errors import RequestError, shown

MAX_N = 16
GREEDY_BELOW = 1e-5  # vLLM's bound: dividing by less only magnifies rounding
MAX_TEMPERATURE = 1e6  # flatter than this is uniform, and float32 still divides by it
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 4
MAX_STOP_CHARS = 256
MAX_STOP_TOKEN_IDS = 128
MAX_LOGIT_BIAS = 300
BIAS_BOUND = 100.0
PENALTY_BOUND = 2.0
INT64_MAX = 2**63 - 1


class DefaultInt(int):
    """A number that nobody asked for: where there is no room for it, it gives way instead of being refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """One request's options. Temperature 0 is greedy; everything else is off by default, as in vLLM.

    `top_k` is off with 0 or -1, `top_p` with 1, `min_p` with 0, `repetition_penalty` with 1. `max_tokens=None` means
    as many as the context has room for; left out it is 16, or those. `logprobs=0` reports the chosen token only.
    """

    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    seed: int | None = None
    logprobs: int | None = None
    stop: Sequence[str] = ()
    """A string alone counts as a sequence of one."""
    stop_token_ids: Sequence[int] = ()
    min_tokens: int = 0
    max_tokens: int | None = DefaultInt(16)
    ignore_eos: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        self._check_filters()
        self._check_penalties()
        self._check_lengths()
        for name, flag in (("ignore_eos", self.ignore_eos), ("skip_special_tokens", self.skip_special_tokens)):
            if not isinstance(flag, bool):
                raise refused(name, flag, "True or False")
        # The caller keeps its list or dict and may change it: what was checked is copied. Frozen, so not by `=`.
        object.__setattr__(self, "stop", stop_strings(self.stop))
        object.__setattr__(self, "stop_token_ids", token_ids("stop_token_ids", self.stop_token_ids))
        object.__setattr__(self, "logit_bias", biases(self.logit_bias))

    @property
    def is_greedy(self) -> bool:
        """True if no random number has a say."""
        return self.temperature < GREEDY_BELOW

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
        check_vocabulary("stop_token_ids", self.stop_token_ids, vocab_size)
        check_vocabulary("logit_bias", self.logit_bias, vocab_size)
        return num_wanted

    def _check_filters(self) -> None:
        number("temperature", self.temperature, 0, MAX_TEMPERATURE)
        number("top_p", self.top_p, 0, 1, above=True)
        number("min_p", self.min_p, 0, 1)
        integer("top_k", self.top_k, -1)
        if self.seed is not None:
            integer("seed", self.seed, -INT64_MAX - 1)
        if self.logprobs is not None:
            integer("logprobs", self.logprobs, 0, MAX_LOGPROBS)

    def _check_penalties(self) -> None:
        number("repetition_penalty", self.repetition_penalty, 0, PENALTY_BOUND, above=True)
        number("presence_penalty", self.presence_penalty, -PENALTY_BOUND, PENALTY_BOUND)
        number("frequency_penalty", self.frequency_penalty, -PENALTY_BOUND, PENALTY_BOUND)

    def _check_lengths(self) -> None:
        integer("n", self.n, 1, MAX_N)
        integer("min_tokens", self.min_tokens, 0)
        if self.max_tokens is not None:
            integer("max_tokens", self.max_tokens, 1)
            if self.min_tokens > self.max_tokens:
                raise refused("min_tokens", self.min_tokens, f"at most max_tokens, {self.max_tokens}")


def refused(name: str, value: object, wanted: str) -> RequestError:
    """The error for one field."""
    return RequestError(f"sampling field {name!r}", shown(value), wanted, f"Change {name} or leave it out.")


def number(name: str, value: object, low: float, high: float, *, above: bool = False) -> None:
    """Refuse what is not a finite number from `low` (or `above` it) to `high`."""
    wanted = f"a finite number {'above' if above else 'from'} {low:g} {'and at most' if above else 'to'} {high:g}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise refused(name, value, wanted)
    # A NaN fails every comparison, so the one below refuses it too.
    if not low <= value <= high or (above and value == low):
        raise refused(name, value, wanted)


def integer(name: str, value: object, low: int, high: int = INT64_MAX) -> None:
    """Refuse what is not an integer in [low, high]."""
    wanted = f"an integer from {low} to {high}" if high != INT64_MAX else f"a 64-bit integer from {low}"
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise refused(name, value, wanted)


def stop_strings(value: object) -> tuple[str, ...]:
    """The strings that end a request. None is none."""
    wanted = f"at most {MAX_STOP_STRINGS} strings of 1 to {MAX_STOP_CHARS} characters"
    given = entries("stop", (value,) if isinstance(value, str) else value, MAX_STOP_STRINGS, wanted)
    strings = []
    for entry in given:
        if not isinstance(entry, str):
            raise refused("stop", entry, wanted)
        if not 1 <= len(entry) <= MAX_STOP_CHARS:
            raise RequestError(
                "sampling field 'stop'", f"a string of {len(entry)} characters", wanted, "Change stop or leave it out."
            )
        strings.append(entry)
    return tuple(strings)


def token_ids(name: str, value: object) -> tuple[int, ...]:
    """Token ids as given; whether the vocabulary has them is checked later. None is none."""
    ids = []
    for entry in entries(name, value, MAX_STOP_TOKEN_IDS, f"at most {MAX_STOP_TOKEN_IDS} token ids"):
        ids.append(token_id(name, entry))
    return tuple(ids)


def token_id(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise refused(name, value, "token ids: integers from 0")
    return value


def entries(name: str, value: object, most: int, wanted: str) -> Sequence[object]:
    """The entries of a list or tuple that is not too long."""
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise refused(name, value, wanted)
    if len(value) > most:
        raise RequestError(f"sampling field {name!r}", f"{len(value)} entries", wanted, "Send fewer.")
    return value


def biases(value: object) -> dict[int, float]:
    """A copy of the bias by token id. None is none."""
    if value is None:
        return {}
    wanted = f"at most {MAX_LOGIT_BIAS} pairs of a token id and a number in [-{BIAS_BOUND:g}, {BIAS_BOUND:g}]"
    if not isinstance(value, Mapping):
        raise refused("logit_bias", value, wanted)
    if len(value) > MAX_LOGIT_BIAS:
        raise RequestError("sampling field 'logit_bias'", f"{len(value)} entries", wanted, "Send fewer.")
    copied = {}
    for key, bias in value.items():
        number("logit_bias", bias, -BIAS_BOUND, BIAS_BOUND)
        copied[token_id("logit_bias", key)] = bias
    return copied


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
