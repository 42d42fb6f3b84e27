"""Many questions about one long text: its KV is computed once."""

from playhead import LLM, SamplingParams

CONTEXT = (
    "The Pequod sailed from Nantucket on a cold Christmas day. Her captain was Ahab, who had lost a leg to a white "
    "whale. Her mates were Starbuck, Stubb and Flask. Her harpooneers were Queequeg, Tashtego and Daggoo. "
)
QUESTIONS = ["Who was her captain?", "Who were her mates?", "Where did she sail from?"]


def main(model: str) -> None:
    llm = LLM(model=model, max_model_len=512, enable_prefix_caching=True, block_size=16)
    params = SamplingParams(temperature=0.0, max_tokens=2)
    prompts = [CONTEXT + question for question in QUESTIONS]
    first = llm.generate(prompts[0], params)[0]
    others = llm.generate(prompts[1:], params)
    shared = [output.num_cached_tokens or 0 for output in others]
    length = len(llm.get_tokenizer().encode(CONTEXT))
    print("cached", shared, "of", length)
    assert first.num_cached_tokens == 0
    assert all(length - 32 < cached <= length for cached in shared)

    uncached = LLM(model=model, max_model_len=512, enable_prefix_caching=False)
    texts = [output.outputs[0].text for output in uncached.generate(prompts, params)]
    assert texts == [output.outputs[0].text for output in (first, *others)]


if __name__ == "__main__":
    main("embedded")
