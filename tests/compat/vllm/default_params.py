"""Start from the model's own sampling parameters and set some of them, as vLLM's basic examples do."""

from playhead import LLM, SamplingParams


def main(model: str) -> None:
    llm = LLM(model=model, max_model_len=64)
    defaults = llm.get_default_sampling_params()
    print(defaults)
    assert defaults.temperature == 0.8  # the checkpoint's generation_config.json says so
    assert defaults.max_tokens == 16
    assert llm.generate("Hark!")[0].outputs[0].token_ids
    defaults.max_tokens = 5
    defaults.ignore_eos = True
    assert len(llm.generate("Hark!", defaults)[0].outputs[0].token_ids) == 5
    assert llm.get_default_sampling_params().max_tokens == 16
    plain = LLM(model=model, max_model_len=64, generation_config="vllm").get_default_sampling_params()
    assert plain.temperature == SamplingParams().temperature == 1.0


if __name__ == "__main__":
    main("embedded")
