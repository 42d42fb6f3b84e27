"""Words that must not come."""

from playhead import LLM, SamplingParams


def main(model: str) -> None:
    llm = LLM(model=model, max_model_len=128)
    params = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
    free = llm.generate("The whale", params)[0].outputs[0].text
    word = max(free.split(), key=len)
    held = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, bad_words=[word])
    text = llm.generate("The whale", held)[0].outputs[0].text
    print(repr(free), "without", repr(word), "->", repr(text))
    assert text != free
    assert word not in text.split()


if __name__ == "__main__":
    main("embedded")
