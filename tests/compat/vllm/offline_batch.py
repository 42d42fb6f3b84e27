"""Continue a few prompts in one batch: the first example of vLLM's documentation."""

from playhead import LLM, SamplingParams

prompts = [
    "Hello, my name is",
    "The president of the council is",
    "The capital of France is",
    "The future of the crown is",
]


def main(model: str) -> None:
    sampling_params = SamplingParams(temperature=0.8, top_p=0.95)
    llm = LLM(model=model)
    outputs = llm.generate(prompts, sampling_params)
    print("\nGenerated Outputs:\n" + "-" * 60)
    for output in outputs:
        prompt = output.prompt
        generated_text = output.outputs[0].text
        print(f"Prompt:    {prompt!r}")
        print(f"Output:    {generated_text!r}")
        print("-" * 60)
    assert [output.prompt for output in outputs] == prompts
    assert all(output.finished and output.outputs[0].text for output in outputs)
    assert all(len(output.outputs[0].token_ids) <= 16 for output in outputs)


if __name__ == "__main__":
    main("embedded")
