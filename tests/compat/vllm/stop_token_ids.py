"""End at token ids of the tokenizer."""

from playhead import LLM, SamplingParams


def main(model: str) -> None:
    llm = LLM(model=model, max_model_len=128)
    free = llm.generate("The sea", SamplingParams(temperature=0, max_tokens=16, ignore_eos=True))[0].outputs[0]
    end = free.token_ids[6]
    first = list(free.token_ids).index(end)
    params = SamplingParams(temperature=0, max_tokens=16, stop_token_ids=[end], ignore_eos=True)
    completion = llm.generate("The sea", params)[0].outputs[0]
    print(completion.text, completion.stop_reason)
    assert completion.finish_reason == "stop"
    assert completion.stop_reason == end
    assert list(completion.token_ids) == list(free.token_ids)[: first + 1]


if __name__ == "__main__":
    main("embedded")
