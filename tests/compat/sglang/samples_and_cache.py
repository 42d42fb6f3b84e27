"""Several samples of a prompt, a shared prefix, and a cache that is flushed."""

import playhead.sgl as sgl

SYSTEM = "You are the oldest sailor of the crew and you answer every question about whales at great length. "


def main(model: str) -> None:
    llm = sgl.Engine(model_path=model, context_length=256, random_seed=1)
    samples = llm.generate([SYSTEM], {"n": 3, "temperature": 1.0, "max_new_tokens": 8, "sampling_seed": 5})
    print([sample["text"] for sample in samples])
    assert len(samples) == 3
    assert len({sample["text"] for sample in samples}) > 1

    params = {"temperature": 0, "max_new_tokens": 2, "frequency_penalty": 0.2, "repetition_penalty": 1.1}
    again = llm.generate(SYSTEM + "How long are they?", params)
    assert again["meta_info"]["cached_tokens"] > 0
    llm.flush_cache()
    assert llm.generate(SYSTEM + "How long are they?", params)["meta_info"]["cached_tokens"] == 0
    llm.shutdown()


if __name__ == "__main__":
    main("embedded")
