"""Token ids in place of texts."""

import asyncio

import playhead.sgl as sgl


def main(model: str) -> None:
    llm = sgl.Engine(model_path=model, context_length=64, page_size=8)
    params = {"temperature": 0.0, "max_new_tokens": 5}
    one = llm.generate(input_ids=[5, 6, 7, 8], sampling_params=params)
    many = llm.generate(input_ids=[[5, 6, 7, 8], [9, 10, 11]], sampling_params=params)
    print(one["output_ids"], [output["output_ids"] for output in many])
    assert one["output_ids"] == many[0]["output_ids"]
    assert [output["meta_info"]["prompt_tokens"] for output in many] == [4, 3]
    awaited = asyncio.run(llm.async_generate(input_ids=[9, 10, 11], sampling_params=params))
    assert awaited["output_ids"] == many[1]["output_ids"]
    llm.shutdown()


if __name__ == "__main__":
    main("embedded")
