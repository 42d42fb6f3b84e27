"""Two answers that stream at the same time."""

import asyncio

import playhead.sgl as sgl


async def follow(llm: sgl.Engine, prompt: str) -> list[str]:
    texts: list[str] = []
    generator = await llm.async_generate(prompt, {"temperature": 0, "max_new_tokens": 6}, stream=True)
    async for chunk in generator:
        texts.append(chunk["text"])
    return texts


async def run(llm: sgl.Engine) -> tuple[list[str], list[str]]:
    return await asyncio.gather(follow(llm, "The king"), follow(llm, "The queen"))


def main(model: str) -> None:
    llm = sgl.Engine(model_path=model, context_length=64)
    streams = asyncio.run(run(llm))
    print(streams)
    for texts in streams:
        assert texts
        assert all(texts[-1].startswith(text) for text in texts)
    llm.shutdown()


if __name__ == "__main__":
    main("embedded")
