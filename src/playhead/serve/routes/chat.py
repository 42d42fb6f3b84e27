"""POST /v1/chat/completions: a conversation, answered whole or as it is written."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from msgspec import UNSET

from playhead.outputs import CompletionOutput, RequestOutput
from playhead.serve.backend import Stream
from playhead.serve.call import Answer, Call, EventStream
from playhead.serve.decode import BodyError, decode
from playhead.serve.protocol.chat import (
    AssistantMessage,
    ChatAnswer,
    ChatChoice,
    ChatRequest,
    ChoiceLogprobs,
    ChunkChoice,
    Delta,
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
from playhead.serve.service import ENCODER, Service, answer, guarded
from playhead.serve.validate import ChatWanted, validate_chat

CHUNK = "chat.completion.chunk"


async def chat(service: Service, call: Call) -> Answer | EventStream:
    """The handler."""
    request = decode(call.body, ChatRequest)
    service.check_model(request.model)
    check_template(service, "messages")
    wanted = validate_chat(request, service.rules(call))
    prompt = await service.read_prompt(await service.read_chat(wanted.messages, wanted.chat), wanted.params)
    head, count = Head.of(service, "chatcmpl"), Count.begin(call.spent, [prompt])
    streams = submit_all(service.backend, head.id, [prompt], wanted.options)
    accepted = Chat(service=service, request=request, wanted=wanted, head=head, count=count)
    if request.stream:
        return EventStream(events=guarded(call.request_id, ChatEvents(accepted).of(streams[0])), close=streams[0].close)
    return answer(accepted.whole(*await whole_outputs(streams)))


def check_template(service: Service, param: str) -> None:
    """Refuse a conversation with a model that has no chat template."""
    if not service.backend.facts.has_chat_template:
        found = "a model without a chat template"
        raise BodyError(param, found, "a model with one", "Use /v1/completions.", code="no_chat_template")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chat:
    """One chat that the engine has accepted."""

    service: Service
    request: ChatRequest
    wanted: ChatWanted
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
        return ChatChoice(
            index=completion.index,
            message=AssistantMessage(content=completion.text),
            finish_reason=ended_by(completion.finish_reason),
            logprobs=self.logprobs(completion),
            stop_reason=completion.stop_reason,
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
        if completion.logprobs:
            delta = Delta(content=completion.text)
            events += self._event(ChunkChoice(index=index, delta=delta, logprobs=self._chat.logprobs(completion)))
        elif completion.text:
            events += start + ENCODER.encode(completion.text) + self._text_end
        if completion.finish_reason is not None:
            self._ended.add(index)
            finish = ended_by(completion.finish_reason)
            last = ChunkChoice(index=index, delta=Delta(), finish_reason=finish, stop_reason=completion.stop_reason)
            events += self._event(last)
        return events

    def _event(self, choice: ChunkChoice) -> bytes:
        return self._start + ENCODER.encode(choice) + self._end
