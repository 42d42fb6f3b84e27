"""Best of n: draw samples and keep the one that the model likes most."""

from playhead import LLM, CompletionOutput, SamplingParams


def mean_logprob(completion: CompletionOutput) -> float:
    assert completion.cumulative_logprob is not None
    return completion.cumulative_logprob / len(completion.token_ids)


def main(model: str) -> None:
    llm = LLM(model=model, max_model_len=128)
    params = SamplingParams(n=5, temperature=1.0, max_tokens=8, logprobs=0, seed=3)
    outputs = llm.generate(["Now is the winter", "Friends, Romans,"], params)
    for output in outputs:
        best = max(output.outputs, key=mean_logprob)
        print(output.prompt, "->", best.text, mean_logprob(best))
        assert all(mean_logprob(best) >= mean_logprob(other) for other in output.outputs)
        assert mean_logprob(best) < 0


if __name__ == "__main__":
    main("embedded")
