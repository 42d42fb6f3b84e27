"""How long an answer may and must be."""

from playhead import LLM, SamplingParams


def main(model: str) -> None:
    llm = LLM(model=model, max_model_len=32)
    tokenizer = llm.get_tokenizer()
    eos = tokenizer.eos_token_id
    assert eos is not None
    prompt = "Speak the speech, I pray you,"
    least = SamplingParams(temperature=1.0, min_tokens=6, max_tokens=12, stop=[" "], seed=1)
    assert len(llm.generate(prompt, least)[0].outputs[0].token_ids) >= 6
    exact = SamplingParams(temperature=1.0, max_tokens=9, ignore_eos=True)
    assert len(llm.generate(prompt, exact)[0].outputs[0].token_ids) == 9
    whole = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=None, ignore_eos=True))[0]
    print(len(whole.prompt_token_ids or []), "+", len(whole.outputs[0].token_ids))
    assert len(whole.prompt_token_ids or []) + len(whole.outputs[0].token_ids) == 32


if __name__ == "__main__":
    main("embedded")
