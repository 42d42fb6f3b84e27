"""Push one token up and another one out."""

from playhead import LLM, SamplingParams


def main(model: str) -> None:
    llm = LLM(model=model, max_model_len=64)
    plain = llm.generate("The king", SamplingParams(temperature=0, max_tokens=1))[0].outputs[0].token_ids[0]
    wanted = llm.get_tokenizer().encode(" queen", add_special_tokens=False)[0]
    pushed = SamplingParams(temperature=0, max_tokens=3, logit_bias={wanted: 100.0})
    barred = SamplingParams(temperature=0, max_tokens=1, logit_bias={plain: -100.0})
    assert list(llm.generate("The king", pushed)[0].outputs[0].token_ids) == [wanted] * 3
    assert llm.generate("The king", barred)[0].outputs[0].token_ids[0] != plain


if __name__ == "__main__":
    main("embedded")
