"""POST /v1/completions: prompts, gone on with."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from msgspec import UNSET

from playhead.engine.front import CheckedPrompt
from playhead.models.text.detokenize import IncrementalDetokenizer
from playhead.outputs import CompletionOutput, Logprob, RequestOutput
from playhead.serve.backend import Stream
from playhead.serve.call import Answer, Call, EventStream
from playhead.serve.decode import BodyError, decode, forms_named
from playhead.serve.protocol.completions import (
    CompletionAnswer,
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
)
from playhead.serve.routes.generation import (
    DONE,
    Count,
    Head,
    best,
    close_all,
    ended_by,
    finite,
    merged,
    prompt_tables,
    submit_all,
    whole_outputs,
)
from playhead.serve.service import ENCODER, Service, answer, guarded
from playhead.serve.validate import CompletionWanted, validate_completion

CHUNK = "text_completion"


async def complete(service: Service, call: Call) -> Answer | EventStream:
    """The handler."""
    request = decode(call.body, CompletionRequest)
    service.check_model(request.model)
    with forms_named("response_format" if request.response_format is not None else None):
        wanted = validate_completion(request, service.rules(call))
        check_fits(wanted, service.backend.max_sequences)
        prompts = [await service.read_prompt(prompt, wanted.params) for prompt in wanted.prompts]
    head, count = Head.of(service, "cmpl"), Count.begin(call.spent, prompts)
    streams = submit_all(service.backend, head.id, prompts, wanted.options)
    accepted = Completions(service=service, request=request, wanted=wanted, prompts=prompts, head=head, count=count)
    if request.stream:
        events = guarded(CompletionEvents(accepted).of(streams))
        return EventStream(events=events, close=partial(close_all, streams))
    return answer(accepted.whole(await whole_outputs(streams)))


def check_fits(wanted: CompletionWanted, max_sequences: int) -> None:
    """Refuse prompts that find no room together even in an empty queue: waiting would not help.

    One prompt is taken by an empty queue, whatever its number of samples.
    """
    num_prompts, num_samples = len(wanted.prompts), wanted.params.n
    if num_prompts > 1 and num_prompts * num_samples > max_sequences:
        found = f"{num_prompts} prompts of {num_samples} samples each"
        raise BodyError(
            "prompt", found, f"at most {max_sequences} samples in all", "Send several requests.", code="invalid_value"
        )


class TextPlace:
    """How far a choice's text has come. A token that goes on with a character begins where the character does.

    The texts of single tokens do not add up to that: "é" as two byte tokens is U+FFFD twice, and one character.
    """

    def __init__(self, detokenizer: IncrementalDetokenizer) -> None:
        self._detokenizer, self._num_chars = detokenizer, 0

    def after(self, token_ids: Sequence[int]) -> list[int]:
        """Go on by these tokens; gives where each of them begins."""
        begins = []
        for token_id in token_ids:
            begins.append(self._num_chars)
            self._num_chars += len(self._detokenizer.feed((token_id,)))
        return begins

    def begin_at(self, num_chars: int) -> None:
        """A prompt of so many characters stands before the next token, whatever its own tokens make of it."""
        self._num_chars = num_chars


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Completions:
    """Prompts of one call that the engine has accepted."""

    service: Service
    request: CompletionRequest
    wanted: CompletionWanted
    prompts: Sequence[CheckedPrompt]
    head: Head
    count: Count

    def whole(self, outputs: Sequence[RequestOutput]) -> CompletionAnswer:
        """The answer to prompts that are not streamed."""
        for number, output in enumerate(outputs):
            self.add(number, output)
        return CompletionAnswer(
            id=self.head.id,
            created=self.head.created,
            model=self.head.model,
            choices=[
                self.choice(number, output, one) for number, output in enumerate(outputs) for one in output.outputs
            ],
            system_fingerprint=self.head.system_fingerprint,
            usage=self.count.usage,
        )

    def add(self, number: int, output: RequestOutput) -> None:
        """Count the tokens of an output. The one token of a prompt that is only scored does not count."""
        self.count.add(number, replace(output, outputs=[]) if self.wanted.is_scored else output)

    def choice(self, number: int, output: RequestOutput, completion: CompletionOutput) -> CompletionChoice:
        reports = output.prompt_logprobs if self.request.prompt_logprobs is not None else None
        before = self.echoed(number)
        return CompletionChoice(
            index=number * self.wanted.params.n + completion.index,
            text=before if self.wanted.is_scored else before + completion.text,
            logprobs=self.logprobs(number, output, completion),
            finish_reason="length" if self.wanted.is_scored else ended_by(completion.finish_reason),
            stop_reason=None if self.wanted.is_scored else completion.stop_reason,
            prompt_logprobs=UNSET if reports is None else prompt_tables(reports),
        )

    def echoed(self, number: int) -> str:
        """The prompt that stands before an answer, or nothing. Of a prompt that may be cut off, what the model read."""
        if not self.wanted.echo:
            return ""
        prompt = self.prompts[number]
        if prompt.text is not None and self.wanted.params.truncate_prompt_tokens is None:
            return prompt.text
        tokenizer, skips = self.service.backend.reader.tokenizer, self.wanted.params.skip_special_tokens
        return tokenizer.decode(prompt.ids, skip_special_tokens=skips)

    def logprobs(self, number: int, output: RequestOutput, completion: CompletionOutput) -> CompletionLogprobs | None:
        """The report of all tokens of a whole choice: with echo those of its prompt come first."""
        if completion.logprobs is None:
            return None
        ids, tables = list(completion.token_ids), list[dict[int, Logprob] | None](completion.logprobs)
        if self.wanted.is_scored:
            ids, tables = [], []
        place, begins = self.place(number), list[int]()
        if self.wanted.echo and output.prompt_logprobs is not None:
            begins = place.after(self.prompts[number].ids)
            place.begin_at(len(self.echoed(number)))
            ids, tables = [*self.prompts[number].ids, *ids], [*output.prompt_logprobs, *tables]
        return self.report(ids, tables, [*begins, *place.after(ids[len(begins) :])])

    def place(self, number: int) -> TextPlace:
        """Where a choice's text begins: with its prompt if that is echoed, else after it."""
        before = () if self.wanted.echo else self.prompts[number].ids
        skips = self.wanted.params.skip_special_tokens
        tokenizer = self.service.backend.reader.tokenizer
        return TextPlace(tokenizer.detokenizer(skip_special_tokens=skips, prompt_ids=before))

    def report(
        self, token_ids: Sequence[int], tables: Sequence[dict[int, Logprob] | None], offsets: list[int]
    ) -> CompletionLogprobs:
        """Tokens that begin at these places of a choice's text. The first token of a prompt has no log-probability.

        The likeliest tokens have the token itself beside them, as the documents of OpenAI say: up to `logprobs` + 1.
        """
        tokenizer, num_top = self.service.backend.reader.tokenizer, self.request.logprobs or 0
        return CompletionLogprobs(
            tokens=[tokenizer.token_text(token_id) or "" for token_id in token_ids],
            token_logprobs=[
                None if table is None else finite(table[token_id].logprob)
                for token_id, table in zip(token_ids, tables, strict=True)
            ],
            top_logprobs=[
                None
                if table is None
                else {
                    one.decoded_token or "": finite(one.logprob)
                    for one in (*(one for _, one in reversed(best(table, num_top))), table[token_id])
                }
                for token_id, table in zip(token_ids, tables, strict=True)
            ]
            if num_top
            else None,
            text_offset=offsets,
        )


class CompletionEvents:
    """The events of streamed completions. The bytes around a piece of text are made once for each sample."""

    def __init__(self, accepted: Completions) -> None:
        options = accepted.request.stream_options
        self._accepted, self._has_usage = accepted, options is not None and bool(options.include_usage)
        self._start = accepted.head.event_start(CHUNK)
        self._end = b'],"usage":null}\n\n' if self._has_usage else b"]}\n\n"
        self._text_end = b',"logprobs":null,"finish_reason":null,"stop_reason":null}' + self._end
        self._text_starts: dict[int, bytes] = {}
        self._places: dict[int, TextPlace] = {}
        self._of_prompts: dict[int, list[dict[int, Logprob] | None]] = {}
        self._ended: set[int] = set()

    async def of(self, streams: Sequence[Stream]) -> AsyncIterator[bytes]:
        """The events, from the first token to [DONE]."""
        accepted, num_samples = self._accepted, self._accepted.wanted.params.n
        try:
            async for number, output in merged(streams):
                accepted.add(number, output)
                events = b"".join(
                    [self._events(number, number * num_samples + one.index, output, one) for one in output.outputs]
                )
                if events:
                    yield events
            if self._has_usage:
                yield self._start + b'],"usage":' + ENCODER.encode(accepted.count.usage) + b"}\n\n"
            yield DONE
        finally:
            close_all(streams)

    def _events(self, number: int, index: int, output: RequestOutput, completion: CompletionOutput) -> bytes:
        """The events of what is new in one sample."""
        if index in self._ended:
            return b""
        events, start = b"", self._text_starts.get(index)
        if start is None:
            start = self._text_starts[index] = self._start + b'{"index":%d,"text":' % index
            events = self._prompt_event(number, index, output)
        if not self._accepted.wanted.is_scored:
            if completion.logprobs:
                begins = self._place(number, index).after(completion.token_ids)
                report = self._accepted.report(completion.token_ids, completion.logprobs, begins)
                events += self._event(CompletionChoice(index=index, text=completion.text, logprobs=report))
            elif completion.text:
                events += start + ENCODER.encode(completion.text) + self._text_end
        if completion.finish_reason is not None:
            self._ended.add(index)
            finish, reason = ended_by(completion.finish_reason), completion.stop_reason
            if self._accepted.wanted.is_scored:
                finish, reason = "length", None
            events += self._event(CompletionChoice(index=index, text="", finish_reason=finish, stop_reason=reason))
        return events

    def _prompt_event(self, number: int, index: int, output: RequestOutput) -> bytes:
        """With echo, the event of the prompt, which comes before those of each of its answers."""
        accepted = self._accepted
        if not accepted.wanted.echo:
            return b""
        if output.prompt_logprobs is not None:  # the first output alone has them, and a sample may begin later
            self._of_prompts[number] = output.prompt_logprobs
        text, report, tables = accepted.echoed(number), None, self._of_prompts.get(number)
        if tables is not None and accepted.request.logprobs is not None:
            place, ids = self._place(number, index), accepted.prompts[number].ids
            report = accepted.report(ids, tables, place.after(ids))
            place.begin_at(len(text))
        return self._event(CompletionChoice(index=index, text=text, logprobs=report))

    def _place(self, number: int, index: int) -> TextPlace:
        return self._places.get(index) or self._places.setdefault(index, self._accepted.place(number))

    def _event(self, choice: CompletionChoice) -> bytes:
        return self._start + ENCODER.encode(choice) + self._end
