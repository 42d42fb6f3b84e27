"""Several streams at once, and one that is cancelled: `python examples/openai_async.py`."""

from __future__ import annotations

import asyncio
import os

from openai import AsyncOpenAI

QUESTIONS = ("Who is there?", "What news?", "Where is the king?")


async def ask(client: AsyncOpenAI, model: str, question: str) -> str:
    """One answer, put together from its chunks."""
    stream = await client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": question}], max_tokens=16, stream=True
    )
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


async def first_words(client: AsyncOpenAI, model: str) -> str:
    """The beginning of an answer. Leaving the stream closes the connection, and the server stops generating."""
    stream = await client.completions.create(model=model, prompt="To be", max_tokens=64, stream=True)
    async with stream:
        async for chunk in stream:
            return chunk.choices[0].text
    return ""


async def main() -> None:
    async with AsyncOpenAI(
        base_url=f"{os.environ.get('PLAYHEAD_URL', 'http://127.0.0.1:8000')}/v1",
        api_key=os.environ.get("PLAYHEAD_API_KEY", "none"),
    ) as client:
        model = (await client.models.list()).data[0].id
        # The server batches them: three answers take hardly longer than one.
        answers = await asyncio.gather(*(ask(client, model, question) for question in QUESTIONS))
        for question, answer in zip(QUESTIONS, answers, strict=True):
            print(f"{question} {answer!r}")
        print("only the beginning:", repr(await first_words(client, model)))


asyncio.run(main())
