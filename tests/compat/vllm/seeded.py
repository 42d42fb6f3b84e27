"""A seed makes a sampled request repeatable; without one, every request draws its own."""

from playhead import LLM, SamplingParams


def main(model: str) -> None:
    llm = LLM(model=model, max_model_len=128)
    seeded = SamplingParams(temperature=1.2, max_tokens=8, seed=1234)
    first = llm.generate("To be, or", seeded)[0].outputs[0].text
    second = llm.generate("To be, or", seeded)[0].outputs[0].text
    print(first)
    assert first == second

    fresh = SamplingParams(temperature=1.5, max_tokens=8)
    drawn = {llm.generate("To be, or", fresh)[0].outputs[0].text for _ in range(3)}
    assert len(drawn) > 1


if __name__ == "__main__":
    main("embedded")
