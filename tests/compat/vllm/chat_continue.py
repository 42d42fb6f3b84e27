"""Put the first words into the assistant's mouth and let it go on."""

from playhead import LLM, SamplingParams


def main(model: str) -> None:
    llm = LLM(model=model, max_model_len=256)
    messages = [
        {"role": "user", "content": "Describe the whale."},
        {"role": "assistant", "content": "The whale is"},
    ]
    outputs = llm.chat(
        messages,
        SamplingParams(temperature=0, max_tokens=8),
        use_tqdm=False,
        add_generation_prompt=False,
        continue_final_message=True,
    )
    assert outputs[0].prompt_token_ids is not None
    prompt = llm.get_tokenizer().decode(outputs[0].prompt_token_ids, skip_special_tokens=True)
    print(prompt + outputs[0].outputs[0].text)
    assert prompt.endswith("The whale is")


if __name__ == "__main__":
    main("embedded")
