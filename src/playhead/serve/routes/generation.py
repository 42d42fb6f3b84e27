"""What routes that run the model share: submitting, reading outputs, counting tokens, reporting logprobs. No torch."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from playhead.engine.front import CheckedPrompt, RequestOptions
from playhead.errors import RequestFailed
from playhead.models.text.tokenizer import Tokenizer
from playhead.outputs import FinishReason, Logprob, RequestOutput
from playhead.serve.backend import Backend, Stream
from playhead.serve.call import Spent
from playhead.serve.protocol.chat import PromptLogprobs, TokenLogprob, TopLogprob
from playhead.serve.protocol.usage import Usage, usage
from playhead.serve.service import ENCODER, Service, new_id, now_s

DONE = b"data: [DONE]\n\n"
LEAST_LOGPROB = -9999.0
"""The log-probability of an impossible token: JSON has no infinity, and clients of OpenAI know this number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What all chunks of one answer begin with."""

    id: str
    created: int
    model: str
    system_fingerprint: str

    @classmethod
    def of(cls, service: Service, kind: str) -> Head:
        """A new answer's."""
        facts = service.backend.facts
        return cls(id=new_id(kind), created=now_s(), model=facts.name, system_fingerprint=facts.fingerprint)

    def event_start(self, kind: str) -> bytes:
        """The bytes of an event up to its first choice. They are the same for every chunk of an answer."""
        fields = {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
        }
        return b"data: " + ENCODER.encode(fields)[:-1] + b',"choices":['


@dataclass(slots=True, kw_only=True)  # mutable: it counts
class Count:
    """How many tokens an answer took so far."""

    spent: Spent
    num_prompt: int
    num_output: int = 0
    num_reasoning: int = 0
    _cached: dict[int, int] = field(default_factory=dict)

    @classmethod
    def begin(cls, spent: Spent, prompts: Sequence[CheckedPrompt]) -> Count:
        num_prompt = sum(len(prompt.ids) for prompt in prompts)
        spent.num_prompt_tokens = num_prompt
        return cls(spent=spent, num_prompt=num_prompt)

    def add(self, prompt: int, output: RequestOutput) -> None:
        """Count the tokens that are new in an output."""
        for completion in output.outputs:
            self.num_output += len(completion.token_ids)
        self.spent.num_output_tokens = self.num_output
        self._cached[prompt] = output.num_cached_tokens

    def add_reasoning(self, service: Service, text: str) -> None:
        """Count the tokens of reasoning that is known as text alone."""
        self.num_reasoning += len(service.backend.reader.tokenizer.encode(text, add_special_tokens=False))

    @property
    def usage(self) -> Usage:
        cached = sum(self._cached.values())
        return usage(
            self.num_prompt, self.num_output, num_cached=cached, num_reasoning=min(self.num_reasoning, self.num_output)
        )


def submit_all(
    backend: Backend, answer_id: str, prompts: Sequence[CheckedPrompt], options: RequestOptions
) -> list[Stream]:
    """Queue all prompts of a call, or none of them."""
    streams: list[Stream] = []
    try:
        for i, prompt in enumerate(prompts):
            streams.append(backend.submit(f"{answer_id}-{i}", prompt, options))
    except BaseException:
        close_all(streams)
        raise
    return streams


def close_all(streams: Sequence[Stream]) -> None:
    for stream in streams:
        stream.close()


async def last_output(stream: Stream) -> RequestOutput:
    """The output of a request that gives one at its end."""
    async for output in stream:
        if output.finished:
            return output
    raise RequestFailed("without a last output")


async def whole_outputs(streams: Sequence[Stream]) -> list[RequestOutput]:
    """The last output of every request. If one fails or the caller leaves, all are aborted."""
    try:
        return [await last_output(stream) for stream in streams]
    finally:
        close_all(streams)


async def merged(streams: Sequence[Stream]) -> AsyncIterator[tuple[int, RequestOutput]]:
    """The outputs of several requests as they come, each with its request's number."""
    if len(streams) == 1:
        async for output in streams[0]:
            yield 0, output
        return
    # One place: a reader that is slow holds up the tasks, and the engine joins what they do not fetch.
    queue: asyncio.Queue[tuple[int, RequestOutput | Exception]] = asyncio.Queue(maxsize=1)

    async def forward(number: int, stream: Stream) -> None:
        try:
            async for output in stream:
                await queue.put((number, output))
        except Exception as error:  # noqa: BLE001 - raised again by the reader
            await queue.put((number, error))

    tasks = [asyncio.create_task(forward(number, stream)) for number, stream in enumerate(streams)]
    try:
        num_open = len(streams)
        while num_open:
            number, found = await queue.get()
            if isinstance(found, Exception):
                raise found
            num_open -= found.finished
            yield number, found
    finally:
        for task in tasks:
            task.cancel()


def ended_by(reason: FinishReason | None) -> Literal["stop", "length"]:
    """OpenAI's word for why a sample ended."""
    if reason not in (FinishReason.STOP, FinishReason.LENGTH):
        raise RequestFailed("aborted")
    return "stop" if reason is FinishReason.STOP else "length"


def finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else LEAST_LOGPROB


def chat_logprob_entries(
    tokenizer: Tokenizer, token_ids: Sequence[int], tables: Sequence[dict[int, Logprob]], num_top: int
) -> list[TokenLogprob]:
    """The report of every token, in the form of chats."""
    return [
        TokenLogprob(
            token=table[token_id].decoded_token or "",
            logprob=finite(table[token_id].logprob),
            bytes=byte_list(tokenizer, token_id),
            top_logprobs=[
                TopLogprob(
                    token=one.decoded_token or "", logprob=finite(one.logprob), bytes=byte_list(tokenizer, other_id)
                )
                for other_id, one in best(table, num_top)
            ],
        )
        for token_id, table in zip(token_ids, tables, strict=True)
    ]


def best(table: dict[int, Logprob], num_top: int) -> list[tuple[int, Logprob]]:
    """The likeliest tokens of one place, best first. The chosen token is among them only if it is one of them."""
    ranked = sorted(table.items(), key=lambda item: item[1].rank or 0)
    return [(token_id, one) for token_id, one in ranked if (one.rank or 0) <= num_top][:num_top]


def byte_list(tokenizer: Tokenizer, token_id: int) -> list[int] | None:
    data = tokenizer.token_bytes(token_id)
    return None if data is None else list(data)


def prompt_tables(tables: Sequence[dict[int, Logprob] | None]) -> PromptLogprobs:
    """The report of the prompt's tokens as vLLM writes it: tables by token id."""
    return [
        None
        if table is None
        else {
            str(token_id): {"logprob": finite(one.logprob), "rank": one.rank, "decoded_token": one.decoded_token}
            for token_id, one in table.items()
        }
        for table in tables
    ]
