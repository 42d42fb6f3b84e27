"""Few-shot prompts with a stop at the line's end."""

from playhead import LLM, SamplingParams

SHOTS = [("king", "queen"), ("lord", "lady"), ("prince", "princess")]


def prompt_for(word: str) -> str:
    shots = "\n".join(f"{one} -> {other}" for one, other in SHOTS)
    return f"{shots}\n{word} ->"


def main(model: str) -> None:
    llm = LLM(model=model, max_model_len=256)
    words = ["duke", "father", "brother"]
    params = SamplingParams(temperature=0, max_tokens=8, stop=["\n"])
    outputs = llm.generate([prompt_for(word) for word in words], params)
    answers = {word: output.outputs[0].text.strip() for word, output in zip(words, outputs, strict=True)}
    print(answers)
    assert set(answers) == set(words)
    assert all("\n" not in answer for answer in answers.values())


if __name__ == "__main__":
    main("embedded")
