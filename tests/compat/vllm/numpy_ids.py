"""Token ids out of numpy, as a data pipeline has them."""

import numpy as np

from playhead import LLM, SamplingParams


def main(model: str) -> None:
    llm = LLM(model=model, max_model_len=64)
    tokenizer = llm.get_tokenizer()
    texts = ["Good morrow", "Good night"]
    rows = [np.asarray(tokenizer(text).input_ids, dtype=np.int32) for text in texts]
    params = SamplingParams(temperature=0, max_tokens=int(np.int64(5)), logprobs=1)
    outputs = llm.generate([{"prompt_token_ids": row.tolist()} for row in rows], params)
    by_text = llm.generate(texts, params)
    for output, other in zip(outputs, by_text, strict=True):
        print(output.outputs[0].text)
        assert output.outputs[0].token_ids == other.outputs[0].token_ids
    lengths = np.array([len(output.outputs[0].token_ids) for output in outputs])
    assert lengths.max() <= 5


if __name__ == "__main__":
    main("embedded")
