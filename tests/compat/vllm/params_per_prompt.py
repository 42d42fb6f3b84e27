"""Every prompt with sampling parameters of its own."""

from playhead import LLM, SamplingParams


def main(model: str) -> None:
    llm = LLM(model=model, max_model_len=128, seed=0)
    prompts = ["The king", "The queen", "The fool"]
    params = [
        SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True),
        SamplingParams(temperature=0.7, top_k=20, max_tokens=8, ignore_eos=True),
        SamplingParams(temperature=1.0, min_p=0.05, max_tokens=12, ignore_eos=True),
    ]
    outputs = llm.generate(prompts, sampling_params=params)
    lengths = [len(output.outputs[0].token_ids) for output in outputs]
    print(lengths)
    assert lengths == [4, 8, 12]
    assert all(output.outputs[0].finish_reason == "length" for output in outputs)


if __name__ == "__main__":
    main("embedded")
