"""Stream one request: vLLM's asynchronous engine, with the text as it grows."""

import asyncio
import itertools

from playhead import AsyncEngine as AsyncLLMEngine
from playhead import AsyncEngineArgs, SamplingParams


async def stream(model: str) -> list[str]:
    engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model=model, max_model_len=64, enforce_eager=True))
    texts: list[str] = []
    try:
        params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
        async for output in engine.generate("The whale", params, request_id="stream-1"):
            texts.append(output.outputs[0].text)
            if output.finished:
                break
    finally:
        engine.shutdown()
    return texts


def main(model: str) -> None:
    texts = asyncio.run(stream(model))
    print(texts)
    assert texts
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))


if __name__ == "__main__":
    main("embedded")
