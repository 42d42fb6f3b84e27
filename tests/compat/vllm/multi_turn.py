"""A conversation over several turns: every turn finds the turns before in the prefix cache."""

from playhead import LLM, SamplingParams


def main(model: str) -> None:
    llm = LLM(model=model, max_model_len=256, enable_prefix_caching=True)
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    history = [{"role": "system", "content": "You are an old sailor who has seen every sea there is."}]
    cached: list[int] = []
    for question in ("Where were you born?", "What ships did you sail?", "Did you see the white whale?"):
        history.append({"role": "user", "content": question})
        (output,) = llm.chat(history, params, use_tqdm=False)
        history.append({"role": "assistant", "content": output.outputs[0].text})
        cached.append(output.num_cached_tokens or 0)
    print(cached)
    assert cached[0] == 0
    assert 0 < cached[1] < cached[2]


if __name__ == "__main__":
    main("embedded")
