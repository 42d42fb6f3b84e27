"""Many conversations in one call."""

from playhead import LLM, SamplingParams


def main(model: str) -> None:
    llm = LLM(model=model, max_model_len=256, max_num_seqs=8)
    questions = ["Who is there?", "What news?", "Where is the king?", "When shall we three meet again?"]
    conversations = [[{"role": "user", "content": question}] for question in questions]
    outputs = llm.chat(messages=conversations, sampling_params=SamplingParams(temperature=0, max_tokens=8))
    tokenizer = llm.get_tokenizer()
    for question, output in zip(questions, outputs, strict=True):
        print(question, "->", output.outputs[0].text)
        assert output.prompt_token_ids is not None
        assert question in tokenizer.decode(output.prompt_token_ids)
    assert len(outputs) == len(questions)


if __name__ == "__main__":
    main("embedded")
