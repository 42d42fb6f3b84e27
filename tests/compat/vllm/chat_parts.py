"""Messages whose content is a list of text parts, as OpenAI's clients write them."""

from playhead import LLM, SamplingParams


def main(model: str) -> None:
    llm = LLM(model=model, max_model_len=256)
    params = SamplingParams(temperature=0, max_tokens=6)
    parts = [{"type": "text", "text": "Summarize this:"}, {"type": "text", "text": "The whale sank the ship."}]
    (by_parts,) = llm.chat([{"role": "user", "content": parts}], params)
    (by_text,) = llm.chat([{"role": "user", "content": "Summarize this:\nThe whale sank the ship."}], params)
    print(by_parts.outputs[0].text)
    assert by_parts.prompt_token_ids == by_text.prompt_token_ids

    picture = {"type": "image_url", "image_url": {"url": "https://example.com/whale.png"}}
    refusals: list[str] = []
    try:
        llm.chat([{"role": "user", "content": [picture]}], params)
    except ValueError as error:
        refusals.append(str(error))
    print(refusals)
    assert len(refusals) == 1
    assert "image_url" in refusals[0]


if __name__ == "__main__":
    main("embedded")
