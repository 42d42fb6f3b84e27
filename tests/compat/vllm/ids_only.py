"""Ids in, ids out: no text is made, and a long prompt keeps its end."""

from playhead import LLM, SamplingParams


def main(model: str) -> None:
    llm = LLM(model=model, max_model_len=64)
    params = SamplingParams(temperature=0, max_tokens=6, detokenize=False, ignore_eos=True)
    ids = llm.get_tokenizer().encode("Full fathom five thy father lies")
    output = llm.generate({"prompt_token_ids": ids}, params)[0]
    assert output.outputs[0].text == ""
    assert len(output.outputs[0].token_ids) == 6

    cut = SamplingParams(temperature=0, max_tokens=6, truncate_prompt_tokens=4, ignore_eos=True)
    short = llm.generate({"prompt_token_ids": ids}, cut)[0]
    print(short.prompt_token_ids, short.outputs[0].text)
    assert short.prompt_token_ids == ids[-4:]


if __name__ == "__main__":
    main("embedded")
