"""One request of a remote engine as the HTTP side sees it: tokens come in, outputs are made of them. No torch.

Tokens wait as integers until their consumer reads, and become text then. A consumer slower than the engine gets several
tokens in one output, and nothing else waits for it. Where a request has stop strings its text is read at once, because
the engine must hear soon that it has ended.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from playhead.engine.front import CheckedPrompt, PromptReader, RequestOptions, joined, split_n
from playhead.engine.output_kind import OutputView
from playhead.engine.response import ResponseBuilder
from playhead.errors import PlayheadError, RequestFailed, caused
from playhead.outputs import FinishReason, RequestOutput
from playhead.sampling_params import SamplingParams
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

    @property
    def params(self) -> SamplingParams:
        return self.request.params

    def reported(self, reports: wire.Reports) -> None:
        """Logprobs came. Their tokens come next."""
        self._reports.extend(reports.tokens)
        self._prompt.extend(reports.prompt)

    def came(self, tokens: Sequence[int], end: FinishReason | None, num_cached_tokens: int) -> None:
        """Tokens came, or the sequence ended."""
        self._unread.extend(tokens)
        self._end = end
        self.has_begun = True
        self.is_over = end is not None
        self.request.num_cached_tokens = num_cached_tokens

    def read(self) -> None:
        """Make text of the tokens that have come. The tokens after a stop string are dropped."""
        request, response = self.request, self._response
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

    def output(self) -> RequestOutput:
        """What there is now."""
        return self._response.output()


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
        self._view = OutputView(checked.params.output_kind)
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

    @property
    def _shows_all(self) -> bool:
        return self.options.streams and self._view.shows_all

    def came(self, sample: Sample) -> None:
        """Something of a sample has come."""
        if sample.params.stop:
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
            output = joined(self.request_id, [sample.output() if sample.has_begun else None for sample in self.samples])
            self._is_read = output.finished
            shown = self._view.of(output)
            if shown is not None:
                return shown
        raise StopAsyncIteration

    def _try(self, read: Callable[[], None]) -> None:
        """Text that cannot be made ends this request, and no other."""
        try:
            read()
        except Exception as error:  # noqa: BLE001  whatever it is, it is this request's
            self._fail(caused(RequestFailed(self.request_id), error))
