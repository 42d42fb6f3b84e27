"""One prompt gives one dict."""

import playhead.sgl as sgl


def main(model: str) -> None:
    with sgl.Engine(model_path=model, context_length=64, mem_fraction_static=0.5) as llm:
        output = llm.generate("The whale", {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True})
        print(output)
        meta = output["meta_info"]
        assert meta["finish_reason"] == {"type": "length", "length": 6}
        assert meta["prompt_tokens"] > 0
        assert meta["completion_tokens"] == len(output["output_ids"]) == 6


if __name__ == "__main__":
    main("embedded")
