"""Prompts as token ids: a dict, a TokensPrompt, a bare list."""

from playhead import LLM, SamplingParams, TokensPrompt


def main(model: str) -> None:
    llm = LLM(model=model, max_model_len=64)
    tokenizer = llm.get_tokenizer()
    ids = tokenizer.encode("Give me my sword")
    params = SamplingParams(temperature=0.0, max_tokens=6)
    by_text = llm.generate("Give me my sword", params)[0]
    by_dict = llm.generate({"prompt_token_ids": ids}, params)[0]
    by_class = llm.generate([TokensPrompt(prompt_token_ids=ids)], params)[0]
    print(by_text.outputs[0].text)
    assert by_text.prompt_token_ids == by_dict.prompt_token_ids == by_class.prompt_token_ids == ids
    assert by_text.outputs[0].token_ids == by_dict.outputs[0].token_ids == by_class.outputs[0].token_ids
    assert by_dict.prompt is None


if __name__ == "__main__":
    main("embedded")
