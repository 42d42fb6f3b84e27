"""What a server allows one request to ask for: narrower than what the library can do. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from playhead.errors import RequestError, shown
from playhead.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """The most that one request of an unknown client may ask for. Each number can be set."""

    prompts: int = 64
    """In one call. Each is a request of its own to the engine."""
    n: int = 16
    stop_strings: int = 4
    stop_chars: int = 256
    stop_token_ids: int = 128
    logprobs: int = 20
    logit_bias: int = 300
    bias: float = 100.0
    repetition_penalty: float = 2.0
    bad_words: int = 64
    bad_word_chars: int = 256
    allowed_token_ids: int = 1024

    def check(self, params: SamplingParams) -> None:
        """`RequestError` for the first field that asks for more than a client may."""
        stop, words, bias = params.stop or (), params.bad_words or (), params.logit_bias or {}
        largest_bias = max(map(abs, bias.values()), default=0)
        for name, found, most, what in (
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
            if found > most:
                raise RequestError(
                    f"sampling field {name!r}", f"{shown(found)}{what}", f"at most {most:g} here", "Ask for less."
                )
