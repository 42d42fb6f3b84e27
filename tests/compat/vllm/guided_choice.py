"""Let a model say nothing but a few letters, by allowed_token_ids."""

from playhead import LLM, SamplingParams


def main(model: str) -> None:
    llm = LLM(model=model, max_model_len=64)
    tokenizer = llm.get_tokenizer()
    letters = sorted({tokenizer.encode(letter, add_special_tokens=False)[-1] for letter in "abcdefgh"})
    params = SamplingParams(temperature=1.0, max_tokens=8, allowed_token_ids=letters, seed=2)
    outputs = llm.generate(["The password is", "Spell it:"], params)
    for output in outputs:
        print(repr(output.outputs[0].text))
        assert set(output.outputs[0].token_ids) <= set(letters)


if __name__ == "__main__":
    main("embedded")
