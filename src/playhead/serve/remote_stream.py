"""One request of a remote engine as the HTTP side sees it: tokens come in, outputs are made of them. No torch.

Tokens wait as integers until their consumer reads, and become text then. A consumer slower than the engine gets several
tokens in one output, and nothing else waits for it. Where a request has stop strings its text is read at once, because
the engine must hear soon that it has ended.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence

from playhead.engine.front import CheckedPrompt, PromptReader, RequestOptions, split_n
from playhead.engine.response import ResponseBuilder
from playhead.errors import PlayheadError, RequestFailed, caused
from playhead.outputs import CompletionOutput, FinishReason, Logprob, RequestMetrics, RequestOutput
from playhead.sampling_params import RequestOutputKind
from playhead.schedule.request import Request
from playhead.serve import wire


class Sample:
    """One sequence. `number` is its name between the processes."""

    def __init__(self, number: int, stream: RemoteStream, request: Request, response: ResponseBuilder) -> None:
        self.number, self.stream, self.request, self._response = number, stream, request, response
        self.has_begun = self.is_over = False
        self._unread: list[int] = []
        self._reports: deque[Sequence[wire.Report]] = deque()
        self._prompt: list[Sequence[wire.Report]] = []
        self._end: FinishReason | None = None
        self._num_tokens = self._num_chars = 0  # that were shown, where each output has what is new
        self.has_stops = bool(request.params.stop)

    @property
    def times_s(self) -> tuple[float, float | None]:
        """When the request came, and when its first token was read."""
        return self._response.arrival_s, self._response.first_token_s

    @property
    def prompt_logprobs(self) -> list[dict[int, Logprob] | None] | None:
        """What was reported of the prompt, if the request wants it."""
        return None if self.request.params.prompt_logprobs is None else list(self._response.prompt_logprobs)

    def reported(self, reports: wire.Reports) -> None:
        """Logprobs came. Their tokens come next."""
        self._reports.extend(reports.tokens)
        self._prompt.extend(reports.prompt)

    def came(self, tokens: Sequence[int], end: FinishReason | None, num_cached_tokens: int) -> None:
        """Tokens came, or the sequence ended."""
        self._unread.extend(tokens)
        self._end = end
        if not self.has_begun:  # a sequence that goes on elsewhere finds other prefixes
            self.request.num_cached_tokens = num_cached_tokens
        self.has_begun = True
        self.is_over = end is not None

    @property
    def tokens(self) -> list[int]:
        """The tokens that have come."""
        return [*self.request.output, *self._unread]

    def interrupted(self) -> None:
        """Its engine is gone. Logprobs whose tokens did not come are dropped: they come again."""
        while len(self._reports) > len(self._unread):
            self._reports.pop()
        if not self.has_begun:
            self._prompt.clear()

    def read(self) -> None:
        """Make text of the tokens that have come. The tokens after a stop string are dropped."""
        request, response = self.request, self._response
        # Before its first token an engine may still be lost, and another one reports all of it again.
        if self.has_begun:
            for report in self._prompt:
                response.take_prompt(len(response.prompt_logprobs) - 1, wire.reports_from(report))
            self._prompt.clear()
        for token in self._unread:
            if response.ended_by is not None:
                break
            request.output.append(token)
            response.take(token, wire.reports_from(self._reports.popleft()) if self._reports else ())
        self._unread.clear()
        end = response.ended_by or self._end
        if end is not None and request.finish_reason is None:
            response.complete_text()
            request.finish_reason, self.is_over = end, True

    def completion(self, index: int, *, is_delta: bool) -> CompletionOutput:
        """What there is now, or what of it was not shown yet."""
        made = self._response.completion(index, first_token=self._num_tokens, first_char=self._num_chars)
        if is_delta:
            self._num_tokens, self._num_chars = len(self.request.output), self._num_chars + len(made.text)
        return made


class RemoteStream:
    """The outputs of one request. `abort` tells the engine that nobody wants these samples any more."""

    def __init__(
        self,
        request_id: str,
        checked: CheckedPrompt,
        options: RequestOptions,
        *,
        abort: Callable[[Sequence[Sample]], None],
    ) -> None:
        self.request_id, self.checked, self.options, self._abort = request_id, checked, options, abort
        self.samples: list[Sample] = []
        kind = checked.params.output_kind
        self._is_delta = kind is RequestOutputKind.DELTA
        self._shows_all = options.streams and kind is not RequestOutputKind.FINAL_ONLY
        self._prompt_ids, self._num_shown = list(checked.ids), 0
        self._changed = asyncio.Event()
        self._error: PlayheadError | None = None
        self._is_read = False

    def add_samples(self, first_number: int, reader: PromptReader) -> None:
        """Make its sequences, numbered from here on."""
        checked, options = self.checked, self.options
        for i, params in enumerate(split_n(checked.params)):
            request = Request(
                id=f"{self.request_id}.{i}",
                prompt=checked.ids,
                params=params,
                max_new_tokens=checked.max_new_tokens,
                arrival=0,
                priority=options.priority,
                salt=checked.salt or options.salt,
                ending_ids=reader.ending_ids(params),
                late_ids=reader.late_ids(params),
                bad_words=checked.bad_words,
            )
            response = ResponseBuilder.begin(request, checked.text, reader.tokenizer, streams=self._shows_all)
            self.samples.append(Sample(first_number + i, self, request, response))

    @property
    def has_begun(self) -> bool:
        """Whether a token of it has come."""
        return any(sample.has_begun for sample in self.samples)

    @property
    def is_over(self) -> bool:
        """Whether nothing of it runs any more. There may be outputs to read yet."""
        return self._is_read or self._error is not None or all(sample.is_over for sample in self.samples)

    def came(self, sample: Sample) -> None:
        """Something of a sample has come."""
        if sample.has_stops:
            self._try(sample.read)
            if sample.is_over:
                self._abort([sample])
        if self._shows_all or self.is_over:
            self._changed.set()

    def give_up(self, error: PlayheadError) -> None:
        """End it with this error, unless it has ended."""
        if not self.is_over:
            self._fail(error)

    def _fail(self, error: PlayheadError) -> None:
        self._error = error
        self._abort(self.samples)
        self._changed.set()

    def close(self) -> None:
        """Abort the request unless it has ended. A second call does nothing."""
        if not self.is_over:
            self._abort(self.samples)
        self._is_read = True
        self._changed.set()

    def __aiter__(self) -> RemoteStream:
        return self

    async def __anext__(self) -> RequestOutput:
        while not self._is_read:
            if not self._changed.is_set():
                await self._changed.wait()
                continue  # another task may have closed it meanwhile
            self._changed.clear()
            for sample in self.samples:
                self._try(sample.read)
            if self._error is not None:
                self._is_read = True
                raise self._error
            output = self._output()
            self._is_read = output.finished
            if self._shows_all or output.finished:
                return output
        raise StopAsyncIteration

    def _output(self) -> RequestOutput:
        """The samples as they are now, as far as they have begun, as `joined` and `OutputView` show them."""
        begun = [(i, sample) for i, sample in enumerate(self.samples) if sample.has_begun]
        finished = all(sample.request.finish_reason is not None for sample in self.samples)
        firsts = [first_s for _, first_s in (sample.times_s for _, sample in begun) if first_s is not None]
        is_first, self._num_shown = not self._num_shown, self._num_shown + 1
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.checked.text,
            prompt_token_ids=self._prompt_ids,
            outputs=[sample.completion(i, is_delta=self._is_delta) for i, sample in begun],
            finished=finished,
            prompt_logprobs=begun[0][1].prompt_logprobs if is_first or not self._is_delta else None,
            num_cached_tokens=begun[0][1].request.num_cached_tokens,
            metrics=RequestMetrics(
                arrival_s=self.samples[0].times_s[0],
                first_token_s=min(firsts, default=None),
                finished_s=time.perf_counter() if finished else None,
            ),
        )

    def _try(self, read: Callable[[], None]) -> None:
        """Text that cannot be made ends this request, and no other."""
        try:
            read()
        except Exception as error:  # noqa: BLE001  whatever it is, it is this request's
            self._fail(caused(RequestFailed(self.request_id), error))
