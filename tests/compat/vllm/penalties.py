"""Penalties make a greedy text repeat itself less."""

from playhead import LLM, SamplingParams


def num_different(token_ids: "list[int] | tuple[int, ...]") -> int:
    return len(set(token_ids))


def main(model: str) -> None:
    llm = LLM(model=model, max_model_len=128)
    prompt = "No, no, no, no, no, no,"
    plain = SamplingParams(temperature=0, max_tokens=14, ignore_eos=True)
    fresh = SamplingParams(temperature=0, max_tokens=14, ignore_eos=True, frequency_penalty=1.5, presence_penalty=1.0)
    turned = SamplingParams(temperature=0, max_tokens=14, ignore_eos=True, repetition_penalty=1.5)
    outputs = llm.generate([prompt] * 3, [plain, fresh, turned])
    counts = [num_different(list(output.outputs[0].token_ids)) for output in outputs]
    print(counts, [output.outputs[0].text for output in outputs])
    assert counts[1] >= counts[0]
    assert counts[2] >= counts[0]
    assert outputs[1].outputs[0].token_ids != outputs[0].outputs[0].token_ids


if __name__ == "__main__":
    main("embedded")
