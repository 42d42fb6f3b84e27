"""End at texts and tokens, and keep the text where it is asked for."""

import playhead.sgl as sgl


def main(model: str) -> None:
    llm = sgl.Engine(model_path=model, context_length=128)
    free = llm.generate("The whale", {"temperature": 0, "max_new_tokens": 14, "ignore_eos": True})
    word = free["text"].split()[-2]
    params = {"temperature": 0, "max_new_tokens": 14, "stop": [word]}
    cut = llm.generate("The whale", params)
    kept = llm.generate("The whale", {**params, "no_stop_trim": True})
    print(repr(free["text"]), "->", repr(cut["text"]))
    assert cut["meta_info"]["finish_reason"] == {"type": "stop", "matched": word}
    assert cut["text"] == free["text"][: free["text"].index(word)]
    assert kept["text"] == cut["text"] + word
    token = free["output_ids"][4]
    ended = llm.generate("The whale", {"temperature": 0, "max_new_tokens": 14, "stop_token_ids": [token]})
    assert ended["meta_info"]["finish_reason"]["matched"] == token
    llm.shutdown()


if __name__ == "__main__":
    main("embedded")
