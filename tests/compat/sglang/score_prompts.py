"""Score texts by the logprobs of their own tokens."""

import playhead.sgl as sgl

TEXTS = ["To be, or not to be, that is the question.", "qzx wvk jjq 9 zzkq xx qpw vvz."]


def main(model: str) -> None:
    llm = sgl.Engine(model_path=model, context_length=128, disable_radix_cache=True)
    outputs = llm.generate(TEXTS, {"temperature": 0, "max_new_tokens": 1}, return_logprob=True, logprob_start_len=0)
    scores: list[float] = []
    for output in outputs:
        entries = output["meta_info"]["input_token_logprobs"]
        assert entries[0][0] is None
        assert len(entries) == output["meta_info"]["prompt_tokens"]
        scores.append(sum(entry[0] for entry in entries[1:]) / len(entries[1:]))
    print(scores)
    assert scores[0] > scores[1]
    llm.shutdown()


if __name__ == "__main__":
    main("embedded")
