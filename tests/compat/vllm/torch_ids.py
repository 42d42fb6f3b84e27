"""Token ids out of a torch tensor, as a model's own code has them."""

import torch

from playhead import LLM, SamplingParams


def main(model: str) -> None:
    llm = LLM(model=model, dtype=torch.float32, max_model_len=64)
    tokenizer = llm.get_tokenizer()
    ids = torch.tensor(tokenizer.encode("Sail on"))
    params = SamplingParams(temperature=0, max_tokens=5)
    output = llm.generate({"prompt_token_ids": ids}, params)[0]
    generated = torch.tensor(output.outputs[0].token_ids)
    whole = torch.cat([ids, generated])
    text = tokenizer.decode(whole, skip_special_tokens=True)
    print(text)
    assert text.startswith("Sail on")
    assert text.endswith(output.outputs[0].text.rstrip())


if __name__ == "__main__":
    main("embedded")
