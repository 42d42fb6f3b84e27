"""Logprobs of the answer and of its best alternatives."""

import playhead.sgl as sgl


def main(model: str) -> None:
    llm = sgl.Engine(model_path=model, context_length=64)
    output = llm.generate("The moon", {"temperature": 0, "max_new_tokens": 4}, return_logprob=True, top_logprobs_num=3)
    meta = output["meta_info"]
    for (logprob, token_id, _), best in zip(meta["output_token_logprobs"], meta["output_top_logprobs"], strict=True):
        print(token_id, logprob, best)
        assert len(best) == 3
        assert best[0][:2] == (logprob, token_id)
    assert [token_id for _, token_id, _ in meta["output_token_logprobs"]] == output["output_ids"]
    assert meta["input_token_logprobs"] == []
    llm.shutdown()


if __name__ == "__main__":
    main("embedded")
