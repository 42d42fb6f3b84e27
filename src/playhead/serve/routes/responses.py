"""POST /v1/responses: a text or a conversation, answered whole or as a stream of typed events.

response.created, response.in_progress
    response.output_item.added                       for each item: reasoning, a message, a call
        response.content_part.added, ... .delta, ... .done, response.content_part.done
    response.output_item.done
response.completed, or response.incomplete if the answer was cut short

As OpenAI's own, the stream has no [DONE]: the last event says that it is the last.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from playhead.outputs import CompletionOutput, RequestOutput
from playhead.serve.backend import Stream
from playhead.serve.call import Answer, Call, EventStream
from playhead.serve.decode import decode, fields_named, forms_named
from playhead.serve.protocol.chat import TokenLogprob
from playhead.serve.protocol.responses import (
    IncompleteDetails,
    InputTokensDetails,
    OutputItem,
    OutputTokensDetails,
    ReasoningOptions,
    ResponsesAnswer,
    ResponsesRequest,
    ResponsesUsage,
    Status,
    TextOptions,
)
from playhead.serve.routes.generation import Count, chat_logprob_entries, ended_by, submit_all, whole_outputs
from playhead.serve.routes.items import Items
from playhead.serve.routes.turn import Turn, check_template, form_field, read_turn
from playhead.serve.service import Service, answer, guarded, new_id, now_s
from playhead.serve.tools.events import Content, Reasoning
from playhead.serve.validate import validate_responses

NAMES = {"max_tokens": "max_output_tokens", "logprobs": "top_logprobs"}
"""Fields of a response that the library calls otherwise."""
EndStatus = Literal["completed", "incomplete"]


async def create_response(service: Service, call: Call) -> Answer | EventStream:
    """The handler."""
    request = decode(call.body, ResponsesRequest)
    service.check_model(request.model)
    check_template(service, "input")
    form = form_field(request, "text.format", request.text and request.text.format)
    with fields_named(NAMES), forms_named(form):
        wanted = validate_responses(request, service.rules(call))
        turn = await read_turn(service, wanted)
    accepted = Accepted(
        service=service,
        request=request,
        turn=turn,
        count=Count.begin(call.spent, [turn.prompt]),
        id=new_id("resp", "_"),
        created_at=now_s(),
    )
    streams = submit_all(service.backend, accepted.id, [turn.prompt], wanted.options)
    if request.stream:
        return EventStream(events=guarded(accepted.events(streams[0])), close=streams[0].close)
    return answer(accepted.whole(*await whole_outputs(streams)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Accepted:
    """One response that the engine has accepted."""

    service: Service
    request: ResponsesRequest
    turn: Turn
    count: Count
    id: str
    created_at: int

    def whole(self, output: RequestOutput) -> ResponsesAnswer:
        """The response to a request that is not streamed."""
        items = Items(has_reports=self.reports_tokens)
        for one in output.outputs:
            for piece in self.by_token(one):
                self.take(items, piece)
        status = status_of(output)
        items.end_all(status)
        self.count.add(0, output)
        return self.response(status, items.done, has_usage=True)

    async def events(self, stream: Stream) -> AsyncIterator[bytes]:
        """The events of a streamed response."""
        items = Items(has_reports=self.reports_tokens)
        status: EndStatus = "incomplete"
        try:
            for kind in ("response.created", "response.in_progress"):
                items.tell(kind, response=self.response("in_progress", []))
            yield items.taken()
            async for output in stream:
                self.count.add(0, output)
                for one in output.outputs:
                    self.take(items, one)
                if output.finished:
                    status = status_of(output)
                if (events := items.taken()) != b"":
                    yield events
            items.end_all(status)
            items.tell(f"response.{status}", response=self.response(status, items.done, has_usage=True))
            yield items.taken()
        finally:
            stream.close()

    def by_token(self, completion: CompletionOutput) -> Iterator[CompletionOutput]:
        """A whole answer as a stream would have it, so that each token counts for the item that it wrote."""
        if self.turn.new_parser is None or not completion.token_ids:
            yield completion
            return
        prompt, last = self.turn.prompt, len(completion.token_ids) - 1
        tokenizer, skips = self.service.backend.reader.tokenizer, prompt.params.skip_special_tokens
        detokenizer = tokenizer.detokenizer(skip_special_tokens=skips, prompt_ids=prompt.ids)
        begin = 0
        for i, token_id in enumerate(completion.token_ids):
            # A stop string ends the text before its tokens do.
            end = len(completion.text) if i == last else begin + len(detokenizer.feed((token_id,)))
            yield replace(
                completion,
                text=completion.text[begin:end],
                token_ids=[token_id],
                logprobs=None if completion.logprobs is None else completion.logprobs[i : i + 1],
                finish_reason=completion.finish_reason if i == last else None,
            )
            begin = end

    def take(self, items: Items, completion: CompletionOutput) -> None:
        """Add what is new to the items."""
        reports = self.reports(completion)
        if self.turn.new_parser is None:
            items.add(Content(text=completion.text), reports)
            return
        if items.parser is None:
            items.parser = self.turn.new_parser()
        found = items.parser.feed(completion.text)
        if completion.finish_reason is not None:
            found += items.parser.finish()
        if found and all(isinstance(one, Reasoning) for one in found):
            self.count.num_reasoning += len(completion.token_ids)
        items.take(found, reports)

    @property
    def reports_tokens(self) -> bool:
        return self.turn.prompt.params.logprobs is not None

    def reports(self, completion: CompletionOutput) -> list[TokenLogprob]:
        """The report of the tokens in an output; empty if none was asked for."""
        if completion.logprobs is None:
            return []
        tokenizer, num_top = self.service.backend.reader.tokenizer, self.request.top_logprobs or 0
        return chat_logprob_entries(tokenizer, completion.token_ids, completion.logprobs, num_top)

    def response(self, status: Status, output: list[OutputItem], *, has_usage: bool = False) -> ResponsesAnswer:
        """The response as far as it has come."""
        request, params = self.request, self.turn.prompt.params
        cut = IncompleteDetails(reason="max_output_tokens") if status == "incomplete" else None
        return ResponsesAnswer(
            id=self.id,
            created_at=self.created_at,
            model=self.service.backend.facts.name,
            status=status,
            output=output,
            instructions=request.instructions,
            max_output_tokens=request.max_output_tokens,
            metadata=request.metadata or {},
            parallel_tool_calls=request.parallel_tool_calls is not False,
            temperature=params.temperature,
            top_p=params.top_p,
            top_logprobs=request.top_logprobs or 0,
            tool_choice=request.tool_choice or "auto",
            tools=request.tools or [],
            text=request.text or TextOptions(),
            reasoning=request.reasoning or ReasoningOptions(),
            user=request.user,
            usage=self.usage if has_usage else None,
            incomplete_details=cut,
        )

    @property
    def usage(self) -> ResponsesUsage:
        used = self.count.usage
        return ResponsesUsage(
            input_tokens=used.prompt_tokens,
            output_tokens=used.completion_tokens,
            total_tokens=used.total_tokens,
            input_tokens_details=InputTokensDetails(cached_tokens=used.prompt_tokens_details.cached_tokens),
            output_tokens_details=OutputTokensDetails(reasoning_tokens=used.completion_tokens_details.reasoning_tokens),
        )


def status_of(output: RequestOutput) -> EndStatus:
    """Whether the answer came to its end."""
    return "completed" if all(ended_by(one.finish_reason) == "stop" for one in output.outputs) else "incomplete"
