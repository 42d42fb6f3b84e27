"""Choose among answers by the logprob of each, given the question."""

from playhead import LLM, RequestOutput, SamplingParams, TokensPrompt

QUESTION = "O Romeo, Romeo, wherefore art thou"
CHOICES = [" Romeo?", " zqxk?", " 1234567?"]


def score(output: RequestOutput, start: int) -> float:
    assert output.prompt_logprobs is not None
    assert output.prompt_token_ids is not None
    found: list[float] = []
    for position in range(start, len(output.prompt_token_ids)):
        table = output.prompt_logprobs[position]
        assert table is not None
        found.append(table[output.prompt_token_ids[position]].logprob)
    return sum(found) / len(found)


def main(model: str) -> None:
    llm = LLM(model=model, max_model_len=128, enable_prefix_caching=False)
    tokenizer = llm.get_tokenizer()
    question = tokenizer.encode(QUESTION)
    answers = [tokenizer.encode(choice, add_special_tokens=False) for choice in CHOICES]
    prompts = [TokensPrompt(prompt_token_ids=question + answer) for answer in answers]
    outputs = llm.generate(prompts, SamplingParams(max_tokens=1, prompt_logprobs=1))
    scores = [score(output, len(question)) for output in outputs]
    best = CHOICES[scores.index(max(scores))]
    print(dict(zip(CHOICES, scores, strict=True)), "->", best)
    assert best == " Romeo?"


if __name__ == "__main__":
    main("embedded")
