"""A request's response while it grows: its text, where the text stops, its logprobs. No torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from playhead.errors import PlayheadError
from playhead.models.text.detokenize import IncrementalDetokenizer
from playhead.models.text.tokenizer import Tokenizer
from playhead.outputs import CompletionOutput, FinishReason, Logprob, RequestMetrics, RequestOutput
from playhead.schedule.request import Request
from playhead.types import TokenReport


@dataclass(slots=True, kw_only=True, eq=False)  # mutable: text and logprobs grow with the tokens
class ResponseBuilder:
    """One request's response. With `streams` its text is read after every token, without only at the end.

    `text_of` gives the text of one token. A request that wants no text, or whose tokens have none, has no detokenizer.
    """

    request: Request
    prompt: str | None
    detokenizer: IncrementalDetokenizer | None
    text_of: Callable[[int], str | None]
    streams: bool
    arrival_s: float
    text: str = ""
    stop_reason: str | int | None = None
    num_read_into_text: int = 0
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    prompt_logprobs: list[dict[int, Logprob] | None] = field(default_factory=lambda: [None])
    cumulative_logprob: float = 0.0
    first_token_s: float | None = None
    num_taken: int = 0
    """Tokens up to the last one that `take` got. Most tokens of a plain request do not go through `take`."""
    ended_by: FinishReason | None = None
    is_whole: bool = False
    error: PlayheadError | None = None

    @classmethod
    def begin(cls, request: Request, prompt: str | None, tokenizer: Tokenizer, *, streams: bool) -> ResponseBuilder:
        """The response to a request that arrives now."""
        skips, has_text = request.params.skip_special_tokens, request.params.detokenize and tokenizer.has_text
        return cls(
            request=request,
            prompt=prompt,
            detokenizer=tokenizer.detokenizer(skip_special_tokens=skips, prompt_ids=request.prompt)
            if has_text
            else None,
            text_of=tokenizer.token_text if has_text else no_text,
            streams=streams,
            arrival_s=time.perf_counter(),
        )

    def take(self, token: int, reports: Sequence[TokenReport]) -> None:
        """One more token, which `request.output` has already; `ended_by` says whether it ends the request.

        `reports` are of the token, then of the best ones, as many as the request wants.
        """
        self.num_taken = len(self.request.output)
        self.ended_by = self._take(token, reports)

    def take_prompt(self, position: int, reports: Iterable[TokenReport]) -> None:
        """What was reported of the prompt token after `position`. A token that was computed anew is not taken again."""
        if position + 1 == len(self.prompt_logprobs):
            self.prompt_logprobs.append(logprob_table(reports, self.text_of))

    def _take(self, token: int, reports: Sequence[TokenReport]) -> FinishReason | None:
        request, params = self.request, self.request.params
        if self.first_token_s is None:
            self.first_token_s = time.perf_counter()
        if params.logprobs is not None:
            self.logprobs.append(logprob_table(reports, self.text_of))
            self.cumulative_logprob += reports[0].logprob if reports else 0.0  # another process may have the table
        if token in request.ending_ids:
            self.stop_reason = token if token in (params.stop_token_ids or ()) else None
            # The token that ends a text is a part of it only on request.
            self._read_text(num_tokens=len(request.output) - (not params.include_stop_str_in_output))
            self.num_read_into_text = len(request.output)
            return FinishReason.STOP
        if self.streams or params.stop:
            self._read_text(num_tokens=len(request.output))
            if self.stop_reason is not None:
                return FinishReason.STOP
        return FinishReason.LENGTH if len(request.output) >= request.max_new_tokens else None

    def complete_text(self) -> None:
        """Add the text of the tokens that were not read yet. A second call changes nothing."""
        if self.is_whole:
            return
        self.is_whole = True
        if self.stop_reason is None or isinstance(self.stop_reason, int):
            self._read_text(num_tokens=len(self.request.output))
            self.text += "" if self.detokenizer is None else self.detokenizer.finish()

    def _read_text(self, *, num_tokens: int) -> None:
        """Add the characters of the tokens up to here, and end the text at a stop string that they complete.

        Stop strings wait for `min_tokens` as end tokens do: the next token is the first that can complete one. It may
        have begun before.
        """
        if self.detokenizer is None:
            return
        params, num_known = self.request.params, len(self.text)
        stops = params.stop or ()
        self.text += self.detokenizer.feed(self.request.output[self.num_read_into_text : num_tokens])
        self.num_read_into_text = max(num_tokens, self.num_read_into_text)
        if not stops or num_tokens <= params.min_tokens:
            return
        found = first_stop(self.text, stops, num_known)
        if found is not None:
            at, stop = found
            self.stop_reason = stop
            self.text = self.text[: at + len(stop)] if params.include_stop_str_in_output else self.text[:at]

    def output(self) -> RequestOutput:
        """The output as its caller sees it now."""
        return self._with_request(self.completion())

    def completion(self, index: int = 0, *, first_token: int = 0, first_char: int = 0) -> CompletionOutput:
        """The generated sequence as its caller sees it now, or what of it comes after these tokens and characters."""
        request = self.request
        # Text that may turn out to be a stop string is not shown yet: shown text never shrinks.
        hidden = () if request.params.include_stop_str_in_output else request.params.stop or ()
        held_back = num_held_back(self.text, hidden) if hidden and request.finish_reason is None else 0
        has_logprobs = request.params.logprobs is not None
        return CompletionOutput(
            index=index,
            text=self.text[first_char : len(self.text) - held_back],
            token_ids=request.output[first_token:],
            finish_reason=request.finish_reason,
            stop_reason=self.stop_reason,
            cumulative_logprob=self.cumulative_logprob if has_logprobs else None,
            logprobs=self.logprobs[first_token:] if has_logprobs else None,
        )

    def bare_output(self) -> RequestOutput:
        """The last output of a request whose text cannot be made: its tokens and the error."""
        request = self.request
        return self._with_request(
            CompletionOutput(index=0, text="", token_ids=list(request.output), finish_reason=request.finish_reason)
        )

    def _with_request(self, completion: CompletionOutput) -> RequestOutput:
        request = self.request
        finished = request.finish_reason is not None
        return RequestOutput(
            request_id=request.id,
            prompt=self.prompt,
            prompt_token_ids=list(request.prompt),
            outputs=[completion],
            finished=finished,
            prompt_logprobs=list(self.prompt_logprobs) if request.params.prompt_logprobs is not None else None,
            num_cached_tokens=request.num_cached_tokens,
            metrics=RequestMetrics(
                arrival_s=self.arrival_s,
                first_token_s=self.first_token_s,
                finished_s=time.perf_counter() if finished else None,
            ),
            error=self.error,
        )


def no_text(token_id: int) -> None:
    """The text of a token in a response without text."""


def logprob_table(reports: Iterable[TokenReport], text_of: Callable[[int], str | None]) -> dict[int, Logprob]:
    """What was reported of one position, by token id. A chosen token that is among the best is in it once, first."""
    return {
        one.token_id: Logprob(logprob=one.logprob, rank=one.rank, decoded_token=text_of(one.token_id))
        for one in reports
    }


def first_stop(text: str, stops: Sequence[str], num_known: int) -> tuple[int, str] | None:
    """Where the first stop string begins that ends after the known characters, and which it is."""
    found = [(text.find(stop, max(0, num_known - len(stop) + 1)), stop) for stop in stops]
    return min(((at, stop) for at, stop in found if at >= 0), default=None)


def num_held_back(text: str, stops: Sequence[str]) -> int:
    """Characters at the end that may be the beginning of a stop string: 2 of "the en" with "end"."""
    starts = (size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size]))
    return max(starts, default=0)
