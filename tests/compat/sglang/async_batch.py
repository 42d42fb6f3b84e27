"""Coroutines that generate together."""

import asyncio
from typing import Any

import playhead.sgl as sgl

PROMPTS = [f"Act {i}." for i in range(6)]


async def run(llm: sgl.Engine) -> list[dict[str, Any]]:
    sampling_params = {"temperature": 0, "max_new_tokens": 4, "ignore_eos": True}
    return await asyncio.gather(*(llm.async_generate(prompt, sampling_params) for prompt in PROMPTS))


def main(model: str) -> None:
    llm = sgl.Engine(model_path=model, context_length=64, max_running_requests=4)
    outputs = asyncio.run(run(llm))
    alone = llm.generate(PROMPTS[3], {"temperature": 0, "max_new_tokens": 4, "ignore_eos": True})
    print([output["text"] for output in outputs])
    assert [output["meta_info"]["completion_tokens"] for output in outputs] == [4] * 6
    assert outputs[3]["text"] == alone["text"]
    llm.shutdown()


if __name__ == "__main__":
    main("embedded")
