"""End at a text. The text itself is left out, unless it is asked for."""

from playhead import LLM, SamplingParams


def main(model: str) -> None:
    llm = LLM(model=model, max_model_len=128)
    free = llm.generate("The whale", SamplingParams(temperature=0, max_tokens=14, ignore_eos=True))[0].outputs[0]
    word = free.text.split()[-2]
    (output,) = llm.generate("The whale", SamplingParams(temperature=0, max_tokens=14, stop=[word, "\n\n\n"]))
    completion = output.outputs[0]
    print(repr(free.text), "->", repr(completion.text))
    assert completion.finish_reason == "stop"
    assert completion.stop_reason == word
    assert completion.text == free.text[: free.text.index(word)]

    kept = SamplingParams(temperature=0, max_tokens=14, stop=word, include_stop_str_in_output=True)
    assert llm.generate("The whale", kept)[0].outputs[0].text.endswith(word)


if __name__ == "__main__":
    main("embedded")
