"""POST /v1/chat/completions: a conversation, answered whole or as it is written."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from msgspec import UNSET

from playhead.outputs import CompletionOutput, RequestOutput
from playhead.serve.backend import Stream
from playhead.serve.call import Answer, Call, EventStream
from playhead.serve.decode import decode, fields_named, forms_named
from playhead.serve.protocol.chat import (
    AssistantMessage,
    CalledDelta,
    CalledFunction,
    ChatAnswer,
    ChatChoice,
    ChatRequest,
    ChoiceLogprobs,
    ChunkChoice,
    Delta,
    FinishedBy,
    ToolCall,
    ToolCallDelta,
)
from playhead.serve.routes.generation import (
    DONE,
    Count,
    Head,
    chat_logprob_entries,
    ended_by,
    prompt_tables,
    submit_all,
    whole_outputs,
)
from playhead.serve.routes.turn import Turn, check_template, form_field, read_turn
from playhead.serve.service import ENCODER, Service, answer, guarded
from playhead.serve.tools.events import Content, Event, Parser, Reasoning, ToolCallArguments, ToolCallStart, gathered
from playhead.serve.validate import validate_chat

CHUNK = "chat.completion.chunk"


async def answer_chat(service: Service, call: Call) -> Answer | EventStream:
    """The handler."""
    request = decode(call.body, ChatRequest)
    service.check_model(request.model)
    check_template(service, "messages")
    with fields_named(names_of(request)), forms_named(form_field(request, "response_format", request.response_format)):
        wanted = validate_chat(request, service.rules(call))
        turn = await read_turn(service, wanted)
    head, count = Head.of(service, "chatcmpl"), Count.begin(call.spent, [turn.prompt])
    streams = submit_all(service.backend, head.id, [turn.prompt], wanted.options)
    accepted = Chat(service=service, request=request, turn=turn, head=head, count=count)
    if request.stream:
        return EventStream(events=guarded(ChatEvents(accepted).of(streams[0])), close=streams[0].close)
    return answer(accepted.whole(*await whole_outputs(streams)))


def names_of(request: ChatRequest) -> dict[str, str]:
    """The fields of this chat that the library calls otherwise."""
    most = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
    return {"max_tokens": most, "logprobs": "top_logprobs"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chat:
    """One chat that the engine has accepted."""

    service: Service
    request: ChatRequest
    turn: Turn
    head: Head
    count: Count

    def whole(self, output: RequestOutput) -> ChatAnswer:
        """The answer to a chat that is not streamed."""
        self.count.add(0, output)
        reports = output.prompt_logprobs
        return ChatAnswer(
            id=self.head.id,
            created=self.head.created,
            model=self.head.model,
            choices=[self.choice(completion) for completion in output.outputs],
            usage=self.count.usage,
            system_fingerprint=self.head.system_fingerprint,
            prompt_logprobs=UNSET if reports is None else prompt_tables(reports),
        )

    def choice(self, completion: CompletionOutput) -> ChatChoice:
        finish: FinishedBy = ended_by(completion.finish_reason)
        message = self.message(completion)
        return ChatChoice(
            index=completion.index,
            message=message,
            finish_reason="tool_calls" if message.tool_calls and finish == "stop" else finish,
            logprobs=self.logprobs(completion),
            stop_reason=completion.stop_reason,
        )

    def message(self, completion: CompletionOutput) -> AssistantMessage:
        """One sample's answer, with its reasoning and its calls apart from its text."""
        if self.turn.new_parser is None:
            return AssistantMessage(content=completion.text)
        parser = self.turn.new_parser()
        parsed = gathered([*parser.feed(completion.text), *parser.finish()])
        if parsed.reasoning:
            self.count.add_reasoning(self.service, parsed.reasoning)
        calls = [
            ToolCall(id=one.id, function=CalledFunction(name=one.name, arguments=one.arguments)) for one in parsed.calls
        ]
        return AssistantMessage(
            content=parsed.content if calls else parsed.content or "",
            reasoning_content=parsed.reasoning if parsed.reasoning and self.request.include_reasoning else UNSET,
            tool_calls=calls or UNSET,
        )

    def logprobs(self, completion: CompletionOutput) -> ChoiceLogprobs | None:
        """The report of the tokens in an output, if one was asked for."""
        if completion.logprobs is None:
            return None
        tokenizer, num_top = self.service.backend.reader.tokenizer, self.request.top_logprobs or 0
        entries = chat_logprob_entries(tokenizer, completion.token_ids, completion.logprobs, num_top)
        return ChoiceLogprobs(content=entries)


class ChatEvents:
    """The events of one streamed chat.

    Almost all events are one piece of one sample's text. The bytes around the text are made once for each sample.
    """

    def __init__(self, chat: Chat) -> None:
        options = chat.request.stream_options
        self._chat, self._has_usage = chat, options is not None and bool(options.include_usage)
        self._start = chat.head.event_start(CHUNK)
        self._end = b'],"usage":null}\n\n' if self._has_usage else b"]}\n\n"
        self._text_end = b'},"logprobs":null,"finish_reason":null}' + self._end
        self._text_starts: dict[int, bytes] = {}
        self._ended: set[int] = set()
        self._parsers: dict[int, Parser] = {}
        self._calling: set[int] = set()

    async def of(self, stream: Stream) -> AsyncIterator[bytes]:
        """The events, from the first token to [DONE]."""
        count = self._chat.count
        try:
            async for output in stream:
                count.add(0, output)
                events = b"".join([self._events(one) for one in output.outputs if one.index not in self._ended])
                if events:
                    yield events
            if self._has_usage:
                yield self._start + b'],"usage":' + ENCODER.encode(count.usage) + b"}\n\n"
            yield DONE
        finally:
            stream.close()

    def _events(self, completion: CompletionOutput) -> bytes:
        """The events of what is new in one sample."""
        index, events = completion.index, b""
        start = self._text_starts.get(index)
        if start is None:
            start = self._text_starts[index] = self._start + b'{"index":%d,"delta":{"content":' % index
            events = self._event(ChunkChoice(index=index, delta=Delta(role="assistant", content="")))
        if self._chat.turn.new_parser is not None:
            events += self._parsed(completion)
        elif completion.logprobs:
            delta = Delta(content=completion.text)
            events += self._event(ChunkChoice(index=index, delta=delta, logprobs=self._chat.logprobs(completion)))
        elif completion.text:
            events += start + ENCODER.encode(completion.text) + self._text_end
        if completion.finish_reason is not None:
            self._ended.add(index)
            finish: FinishedBy = ended_by(completion.finish_reason)
            if index in self._calling and finish == "stop":
                finish = "tool_calls"
            last = ChunkChoice(index=index, delta=Delta(), finish_reason=finish, stop_reason=completion.stop_reason)
            events += self._event(last)
        return events

    def _parsed(self, completion: CompletionOutput) -> bytes:
        """The events of text that may be reasoning or calls. The report of its tokens goes with the first of them."""
        index, new_parser = completion.index, self._chat.turn.new_parser
        assert new_parser is not None, "text is parsed because there is a parser"
        parser = self._parsers.get(index) or self._parsers.setdefault(index, new_parser())
        found = parser.feed(completion.text) if completion.text else []
        if completion.finish_reason is not None:
            found += parser.finish()
        kinds = {type(one) for one in found}
        if kinds == {Reasoning}:
            self._chat.count.num_reasoning += len(completion.token_ids)
        if ToolCallStart in kinds:
            self._calling.add(index)
        if completion.logprobs:
            return self._reported(completion, found)
        start = self._text_starts[index]
        return b"".join(
            [
                start + ENCODER.encode(one.text) + self._text_end
                if isinstance(one, Content)
                else self._event(ChunkChoice(index=index, delta=delta_of(one)))
                for one in self._shown(found)
            ]
        )

    def _reported(self, completion: CompletionOutput, found: Sequence[Event]) -> bytes:
        """The same, with the report of the tokens. A report without text goes with an empty text."""
        deltas = [delta_of(one) for one in self._shown(found)] or [Delta(content="")]
        reports = [self._chat.logprobs(completion), *[None] * (len(deltas) - 1)]
        choices = [
            ChunkChoice(index=completion.index, delta=delta, logprobs=report)
            for delta, report in zip(deltas, reports, strict=True)
        ]
        return b"".join([self._event(choice) for choice in choices])

    def _shown(self, found: Sequence[Event]) -> Sequence[Event]:
        """What the client wants to see."""
        if self._chat.request.include_reasoning:
            return found
        return [one for one in found if not isinstance(one, Reasoning)]

    def _event(self, choice: ChunkChoice) -> bytes:
        return self._start + ENCODER.encode(choice) + self._end


def delta_of(event: Event) -> Delta:
    """A piece of an answer as a chunk has it."""
    match event:
        case Content():
            return Delta(content=event.text)
        case Reasoning():
            return Delta(reasoning_content=event.text)
        case ToolCallStart():
            called = CalledDelta(name=event.name, arguments="")
            return Delta(tool_calls=[ToolCallDelta(index=event.index, id=event.id, type="function", function=called)])
        case ToolCallArguments():
            more = CalledDelta(arguments=event.text)
            return Delta(tool_calls=[ToolCallDelta(index=event.index, function=more)])
