"""Text prompts as dicts and as TextPrompt, mixed with plain texts."""

from playhead import LLM, SamplingParams
from playhead.inputs import PromptType, TextPrompt, TokensPrompt


def main(model: str) -> None:
    llm = LLM(model=model, max_model_len=64)
    params = SamplingParams(temperature=0, max_tokens=4)
    prompts: list[PromptType] = [
        "The ship",
        TextPrompt(prompt="The ship"),
        TokensPrompt(prompt_token_ids=[5, 9, 12]),
        "The sea",
    ]
    outputs = llm.generate(prompts, params)
    print([output.outputs[0].text for output in outputs])
    assert outputs[0].prompt == outputs[1].prompt == "The ship"
    assert outputs[0].outputs[0].token_ids == outputs[1].outputs[0].token_ids
    assert outputs[2].prompt_token_ids == [5, 9, 12]
    assert outputs[3].prompt == "The sea"


if __name__ == "__main__":
    main("embedded")
