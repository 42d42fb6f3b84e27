"""The perplexity of texts, by the logprobs of their own tokens."""

import math

from playhead import LLM, SamplingParams

TEXTS = ["To be, or not to be, that is the question.", "qzx wvk jjq 9 zzkq xx qpw vvz."]


def main(model: str) -> None:
    llm = LLM(model=model, max_model_len=128)
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    perplexities: list[float] = []
    for output in llm.generate(TEXTS, params):
        assert output.prompt_logprobs is not None
        ids = output.prompt_token_ids
        assert ids is not None
        assert output.prompt_logprobs[0] is None
        chosen = [
            table[token_id].logprob
            for token_id, table in zip(ids, output.prompt_logprobs, strict=True)
            if table is not None
        ]
        perplexities.append(math.exp(-sum(chosen) / len(chosen)))
    print(perplexities)
    assert perplexities[0] < perplexities[1]


if __name__ == "__main__":
    main("embedded")
