"""One prompt, without parameters: the model's own defaults."""

from playhead import LLM


def main(model: str) -> None:
    llm = LLM(model, max_model_len=128)
    (output,) = llm.generate("Call me Ishmael.")
    completion = output.outputs[0]
    print(completion.text)
    assert output.prompt == "Call me Ishmael."
    assert output.prompt_token_ids
    assert completion.index == 0
    assert completion.finish_reason in ("length", "stop")


if __name__ == "__main__":
    main("embedded")
