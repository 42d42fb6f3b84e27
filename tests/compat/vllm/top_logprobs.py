"""The five likeliest next tokens of a prompt, in order."""

from playhead import LLM, SamplingParams


def main(model: str) -> None:
    llm = LLM(model=model, max_model_len=64)
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=5)
    for output in llm.generate(["The whale", "My lord", "Good"], params):
        assert output.outputs[0].logprobs is not None
        table = output.outputs[0].logprobs[0]
        ranked = sorted(table.items(), key=lambda item: item[1].logprob, reverse=True)
        print(output.prompt, [(entry.decoded_token, round(entry.logprob, 2)) for _, entry in ranked])
        assert [entry.rank for _, entry in ranked] == [1, 2, 3, 4, 5]
        assert ranked[0][0] == output.outputs[0].token_ids[0]


if __name__ == "__main__":
    main("embedded")
