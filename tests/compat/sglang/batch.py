"""A batch of prompts: the first example of SGLang's offline engine."""

import playhead.sgl as sgl


def main(model: str) -> None:
    prompts = [
        "Hello, my name is",
        "The president of the council is",
        "The capital of France is",
        "The future of the crown is",
    ]
    sampling_params = {"temperature": 0.8, "top_p": 0.95, "max_new_tokens": 8}
    llm = sgl.Engine(model_path=model)
    outputs = llm.generate(prompts, sampling_params)
    for prompt, output in zip(prompts, outputs, strict=True):
        print("===============================")
        print(f"Prompt: {prompt}\nGenerated text: {output['text']}")
    assert len(outputs) == 4
    assert all(output["meta_info"]["completion_tokens"] <= 8 for output in outputs)
    llm.shutdown()


if __name__ == "__main__":
    main("embedded")
