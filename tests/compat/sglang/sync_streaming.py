"""Stream an answer, printing what is new of it."""

import playhead.sgl as sgl


def main(model: str) -> None:
    llm = sgl.Engine(model_path=model, context_length=64, disable_cuda_graph=True)
    shown = ""
    for chunk in llm.generate("The sea", {"temperature": 0, "max_new_tokens": 8}, stream=True):
        new = chunk["text"][len(shown) :]
        shown += new
        print(new, end="", flush=True)
    print()
    whole = llm.generate("The sea", {"temperature": 0, "max_new_tokens": 8})
    assert shown == whole["text"]
    llm.shutdown()


if __name__ == "__main__":
    main("embedded")
