"""Greedy decoding gives the same text whatever else is in the batch."""

from playhead import LLM, SamplingParams

QUESTION = "The whale"


def main(model: str) -> None:
    llm = LLM(model=model, max_model_len=128, max_num_seqs=8)
    params = SamplingParams(temperature=0.0, max_tokens=12)
    alone = llm.generate(QUESTION, params, use_tqdm=False)[0].outputs[0]
    crowd = llm.generate(["My lord,", QUESTION, "O Romeo,", QUESTION], params, use_tqdm=False)
    texts = [output.outputs[0].text for output in crowd]
    print(texts)
    assert texts[1] == texts[3] == alone.text
    assert crowd[1].outputs[0].token_ids == alone.token_ids


if __name__ == "__main__":
    main("embedded")
