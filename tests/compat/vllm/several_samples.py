"""Four samples of one prompt."""

from playhead import LLM, SamplingParams


def main(model: str) -> None:
    llm = LLM(model=model, max_model_len=128)
    params = SamplingParams(n=4, temperature=1.0, max_tokens=10, seed=7)
    (output,) = llm.generate(["Once more unto"], params)
    for completion in output.outputs:
        print(f"[{completion.index}] {completion.text!r}")
    assert [completion.index for completion in output.outputs] == [0, 1, 2, 3]
    assert len({completion.text for completion in output.outputs}) > 1


if __name__ == "__main__":
    main("embedded")
