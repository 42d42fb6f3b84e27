"""What a server allows one request to ask for: narrower than what the library can do. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from playhead.errors import ConfigError, RequestError, shown
from playhead.sampling_params import SamplingParams
from playhead.settings import Setting, check_settings, declare, refused_setting, settings_of


def refused(name: str, value: object, wanted: str) -> ConfigError:
    """The error for one limit."""
    return refused_setting(f"limits, {name}", value, wanted)


def most(default: float, meaning: str) -> Any:
    """A limit with its meaning. It can be set to any number that is not negative."""
    return declare(default, Setting(help=meaning, low=0, high=2**31))


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """The most that one request of an unknown client may ask for. Each number can be set."""

    prompts: int = most(64, "prompts in one call; each is a request of its own to the engine")
    n: int = most(16, "samples of one prompt")
    stop_strings: int = most(4, "strings in `stop`")
    stop_chars: int = most(256, "characters of one string in `stop`")
    stop_token_ids: int = most(128, "ids in `stop_token_ids`")
    logprobs: int = most(20, "`top_logprobs`, `logprobs` and `prompt_logprobs`")
    logit_bias: int = most(300, "entries of `logit_bias`")
    bias: float = most(100.0, "value of one entry, above or below zero")
    repetition_penalty: float = most(2.0, "`repetition_penalty`")
    bad_words: int = most(64, "strings in `bad_words`")
    bad_word_chars: int = most(256, "characters of one string in `bad_words`")
    allowed_token_ids: int = most(1024, "ids in `allowed_token_ids`")
    tools: int = most(128, "functions in `tools`")
    tool_description_chars: int = most(16_384, "characters of a function's description")
    tool_parameters_bytes: int = most(64 << 10, "bytes of the JSON schema of a function's parameters")
    tool_parameters_depth: int = most(32, "depth of that JSON schema")
    tools_bytes: int = most(256 << 10, "bytes of all descriptions and schemas together")

    def __post_init__(self) -> None:
        check_settings(self, REQUEST_LIMITS, refused)

    def check(self, params: SamplingParams) -> None:
        """`RequestError` for the first field that asks for more than a client may."""
        stop, words, bias = params.stop or (), params.bad_words or (), params.logit_bias or {}
        largest_bias = max(map(abs, bias.values()), default=0)
        for name, found, limit, what in (
            ("n", params.n, self.n, ""),
            ("stop", len(stop), self.stop_strings, " strings"),
            ("stop", max(map(len, stop), default=0), self.stop_chars, " characters in one string"),
            ("stop_token_ids", len(params.stop_token_ids or ()), self.stop_token_ids, " token ids"),
            ("logprobs", params.logprobs or 0, self.logprobs, ""),
            ("prompt_logprobs", params.prompt_logprobs or 0, self.logprobs, ""),
            ("logit_bias", len(bias), self.logit_bias, " entries"),
            ("logit_bias", largest_bias, self.bias, " in either direction"),
            ("repetition_penalty", params.repetition_penalty, self.repetition_penalty, ""),
            ("bad_words", len(words), self.bad_words, " strings"),
            ("bad_words", max(map(len, words), default=0), self.bad_word_chars, " characters in one string"),
            ("allowed_token_ids", len(params.allowed_token_ids or ()), self.allowed_token_ids, " token ids"),
        ):
            if found > limit:
                raise RequestError(
                    f"sampling field {name!r}", f"{shown(found)}{what}", f"at most {limit:g} here", "Ask for less."
                )


REQUEST_LIMITS = settings_of(RequestLimits)
