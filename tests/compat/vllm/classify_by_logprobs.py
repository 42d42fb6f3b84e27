"""Classify by the logprobs of the labels' first tokens: no text is generated but one token."""

import math

from playhead import LLM, SamplingParams

LABELS = ["yes", "no"]
REVIEWS = ["What a noble king!", "This ship will sink.", "I like it not."]


def main(model: str) -> None:
    llm = LLM(model=model, max_model_len=128, max_num_seqs=4)
    tokenizer = llm.get_tokenizer()
    label_ids = [tokenizer.encode(" " + label, add_special_tokens=False)[0] for label in LABELS]
    prompts = [f"Review: {review}\nIs it good? Answer:" for review in REVIEWS]
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=20, allowed_token_ids=label_ids)
    verdicts: list[str] = []
    for review, output in zip(REVIEWS, llm.generate(prompts, params), strict=True):
        completion = output.outputs[0]
        assert completion.logprobs is not None
        table = completion.logprobs[0]
        odds = {label: math.exp(table[i].logprob) for label, i in zip(LABELS, label_ids, strict=True) if i in table}
        verdict = LABELS[label_ids.index(completion.token_ids[0])]
        verdicts.append(verdict)
        print(review, "->", verdict, odds)
        assert verdict in odds
    assert set(verdicts) <= set(LABELS)


if __name__ == "__main__":
    main("embedded")
