"""Give one request up while another goes on."""

import asyncio

from playhead import AsyncEngine as AsyncLLMEngine
from playhead import AsyncEngineArgs, SamplingParams


async def first_tokens(engine: AsyncLLMEngine, request_id: str) -> int:
    params = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
    async for output in engine.generate("On and on", params, request_id):
        if len(output.outputs[0].token_ids) >= 3:
            await engine.abort(request_id)
            return len(output.outputs[0].token_ids)
    raise AssertionError("it ended by itself")


async def whole(engine: AsyncLLMEngine) -> int:
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    num_tokens = 0
    async for output in engine.generate("A short one", params, "whole"):
        num_tokens = len(output.outputs[0].token_ids)
    return num_tokens


async def serve(model: str) -> list[int]:
    engine = AsyncLLMEngine.from_engine_args(
        AsyncEngineArgs(model=model, max_model_len=256, max_num_seqs=2, enforce_eager=True)
    )
    counts = await asyncio.gather(first_tokens(engine, "long"), whole(engine))
    engine.shutdown()
    return list(counts)


def main(model: str) -> None:
    aborted, finished = asyncio.run(serve(model))
    print(aborted, finished)
    assert 3 <= aborted < 200
    assert finished == 6


if __name__ == "__main__":
    main("embedded")
