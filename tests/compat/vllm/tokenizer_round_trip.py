"""What the tokenizer of an LLM can do."""

from playhead import LLM


def main(model: str) -> None:
    llm = LLM(model=model, max_model_len=64)
    tokenizer = llm.get_tokenizer()
    text = "All the world's a stage."
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert tokenizer(text).input_ids == ids
    assert tokenizer([text, "Hi"])["input_ids"][0] == ids
    assert tokenizer.batch_decode([ids], skip_special_tokens=True) == [text]
    assert 0 <= max(ids) < len(tokenizer)
    assert tokenizer.eos_token_id is not None
    tokens = tokenizer.convert_ids_to_tokens(ids)
    assert tokenizer.convert_tokens_to_ids(tokens) == ids
    print(tokens)


if __name__ == "__main__":
    main("embedded")
