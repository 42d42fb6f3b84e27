"""Logprobs of every generated token, and of the best three beside it."""

import math

from playhead import LLM, SamplingParams


def main(model: str) -> None:
    llm = LLM(model=model, max_model_len=128)
    params = SamplingParams(temperature=0.9, seed=5, max_tokens=6, logprobs=3)
    completion = llm.generate("The moon", params)[0].outputs[0]
    assert completion.logprobs is not None
    total = 0.0
    for token_id, table in zip(completion.token_ids, completion.logprobs, strict=True):
        chosen = table[token_id]
        total += chosen.logprob
        others = {entry.decoded_token: round(entry.logprob, 3) for entry in table.values()}
        print(f"{chosen.decoded_token!r} {chosen.logprob:.3f} rank {chosen.rank} of {others}")
        assert 3 <= len(table) <= 4
        assert chosen.logprob <= 0
        assert sum(math.exp(entry.logprob) for entry in table.values()) <= 1.001
    assert completion.cumulative_logprob is not None
    assert math.isclose(total, completion.cumulative_logprob, abs_tol=1e-4)


if __name__ == "__main__":
    main("embedded")
