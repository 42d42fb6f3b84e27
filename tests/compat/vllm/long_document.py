"""Summarize a document that is longer than the context: by parts, then the parts' summaries."""

from playhead import LLM, SamplingParams, TokensPrompt

DOCUMENT = "\n".join(f"Day {day}: the wind was fair, and we saw {day % 7} whales to the east." for day in range(20))
CONTEXT = 128


def main(model: str) -> None:
    llm = LLM(model=model, max_model_len=CONTEXT, max_num_batched_tokens=64, enable_chunked_prefill=True)
    tokenizer = llm.get_tokenizer()
    ids = tokenizer.encode(DOCUMENT)
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    try:
        llm.generate(DOCUMENT, params)
    except ValueError as error:
        print("too long:", error)
    size = CONTEXT - 32
    parts = [ids[start : start + size] for start in range(0, len(ids), size)]
    ask = tokenizer.encode("\nIn short:", add_special_tokens=False)
    outputs = llm.generate([TokensPrompt(prompt_token_ids=part + ask) for part in parts], params)
    summary = "\n".join(output.outputs[0].text for output in outputs)
    (final,) = llm.generate(summary[:120] + "\nIn short:", params)
    print(len(ids), "tokens in", len(parts), "parts:", final.outputs[0].text)
    assert len(ids) > CONTEXT
    assert len(outputs) == len(parts) > 3
    assert all(len(output.outputs[0].token_ids) == 6 for output in outputs)


if __name__ == "__main__":
    main("embedded")
