"""Write the prompt out with the tokenizer's chat template and generate from it."""

from playhead import LLM, SamplingParams


def main(model: str) -> None:
    llm = LLM(model=model, max_model_len=256)
    tokenizer = llm.get_tokenizer()
    messages = [{"role": "user", "content": "Tell me of the sea."}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, enable_thinking=False)
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    params = SamplingParams(temperature=0, max_tokens=8)
    by_hand = llm.generate({"prompt_token_ids": ids}, params)[0]
    by_chat = llm.chat(messages, params)[0]
    print(repr(text), "->", by_hand.outputs[0].text)
    assert "Tell me of the sea." in text
    assert by_hand.prompt_token_ids == by_chat.prompt_token_ids
    assert by_hand.outputs[0].token_ids == by_chat.outputs[0].token_ids


if __name__ == "__main__":
    main("embedded")
