"""Many requests at once on one asynchronous engine."""

import asyncio

from playhead import AsyncEngine as AsyncLLMEngine
from playhead import AsyncEngineArgs, RequestOutput, SamplingParams

PROMPTS = [f"Scene {i}." for i in range(12)]


async def answer(engine: AsyncLLMEngine, number: int, prompt: str) -> RequestOutput:
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    final: RequestOutput | None = None
    async for output in engine.generate(prompt, params, f"request-{number}"):
        final = output
    assert final is not None
    return final


async def serve(model: str) -> list[RequestOutput]:
    args = AsyncEngineArgs(model=model, max_model_len=64, max_num_seqs=4, enforce_eager=None, enable_log_requests=False)
    engine = AsyncLLMEngine.from_engine_args(args)
    outputs = await asyncio.gather(*(answer(engine, i, prompt) for i, prompt in enumerate(PROMPTS)))
    engine.shutdown()
    return outputs


def main(model: str) -> None:
    outputs = asyncio.run(serve(model))
    print([output.outputs[0].text for output in outputs])
    assert [output.prompt for output in outputs] == PROMPTS
    assert [output.request_id for output in outputs] == [f"request-{i}" for i in range(12)]
    assert all(output.finished and len(output.outputs[0].token_ids) == 4 for output in outputs)


if __name__ == "__main__":
    main("embedded")
