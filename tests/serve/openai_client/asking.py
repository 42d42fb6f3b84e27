"""The real `openai` package, sync or async, asked in one way."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import openai

HELLO = [{"role": "user", "content": "Who is there?"}]
LONG = [
    {"role": "user", "content": "Tell me of the sea, the ship and the white whale, and of the men who sailed. " * 2}
]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}
WHALE = {
    "type": "object",
    "properties": {"white": {"type": "boolean"}, "size": {"type": "string", "enum": ["small", "large"]}},
    "required": ["white", "size"],
    "additionalProperties": False,
}


class Asking:
    """One client. Calls and streams give the same results whether the client is async or not.

    `exact` keeps an answer from ending early, so that its length is `max_tokens`.
    """

    def __init__(self, url: str, model: str, mode: str, **settings: Any) -> None:
        self.exact: dict[str, Any] = {"extra_body": {"ignore_eos": True}}
        kind = openai.AsyncOpenAI if mode == "async" else openai.OpenAI
        options = {"api_key": "none", "max_retries": 0, "timeout": 120.0, **settings}
        self.model, self.client = model, kind(base_url=f"{url}/v1", **options)
        self._runner = asyncio.Runner() if mode == "async" else None

    def run(self, made: Any) -> Any:
        """The result of a call."""
        if not inspect.isawaitable(made):
            return made
        assert self._runner is not None, "only the async client gives awaitables"

        async def wait() -> Any:
            return await made

        return self._runner.run(wait())

    def items(self, made: Any, most: int | None = None) -> list[Any]:
        """What a stream gives, or the first few of it; then the stream is closed."""

        def take() -> list[Any]:
            with made as stream:
                return [one for _, one in zip(range(most or 10**9), stream, strict=False)]

        async def take_async() -> list[Any]:
            found: list[Any] = []
            async with await made as stream:
                async for one in stream:
                    found.append(one)
                    if len(found) == most:
                        break
            return found

        return take() if self._runner is None else self._runner.run(take_async())

    def managed(self, made: Any) -> tuple[list[Any], Any]:
        """The events of one of the package's own stream managers, and the stream, which knows the final answer."""

        async def take_async() -> tuple[list[Any], Any]:
            async with made as stream:
                return [event async for event in stream], stream

        if self._runner is not None:
            return self._runner.run(take_async())
        with made as stream:
            return list(stream), stream

    def listed(self, pages: Any) -> list[Any]:
        """All entries of a list that comes in pages."""

        async def take_async() -> list[Any]:
            return [one async for one in pages]

        return list(pages) if self._runner is None else self._runner.run(take_async())

    def chat(self, messages: Any = None, **fields: Any) -> Any:
        """A chat completion; greedy and short unless said otherwise."""
        return self._made(self.client.chat.completions.create, messages=messages or HELLO, **fields)

    def complete(self, prompt: Any = "The whale", **fields: Any) -> Any:
        return self._made(self.client.completions.create, prompt=prompt, **fields)

    def respond(self, said: Any = "Who is there?", **fields: Any) -> Any:
        fields.setdefault("max_output_tokens", 8)
        return self._made(self.client.responses.create, input=said, **{"max_tokens": None, **fields})

    def _made(self, create: Callable[..., Any], **fields: Any) -> Any:
        wanted = {"model": self.model, "temperature": 0, "max_tokens": 8, **fields}
        wanted = {name: value for name, value in wanted.items() if value is not None}
        made = create(**wanted)
        return self.items(made) if wanted.get("stream") else self.run(made)

    def refusal(self, call: Callable[..., Any], *args: Any, **fields: Any) -> openai.APIStatusError:
        """The error that a call raises."""
        try:
            call(*args, **fields)
        except openai.APIStatusError as error:
            return error
        raise AssertionError("the call was answered")

    def close(self) -> None:
        self.run(self.client.close())
        if self._runner is not None:
            self._runner.close()


def content(chunks: list[Any], index: int = 0) -> str:
    """The text of one sample of a streamed chat."""
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    return "".join(choice.delta.content or "" for choice in choices)


def text(chunks: list[Any], index: int = 0) -> str:
    """The text of one choice of a streamed completion."""
    return "".join(choice.text for chunk in chunks for choice in chunk.choices if choice.index == index)
