"""Tenants that must not see each other's prefixes in the cache, and a cache that is forgotten."""

from playhead import LLM, SamplingParams, TextPrompt

SYSTEM = "You answer questions of the crew about the voyage, its ports, its cargo and the whales that were seen. "


def main(model: str) -> None:
    llm = LLM(model=model, max_model_len=256)
    params = SamplingParams(temperature=0, max_tokens=2)

    def cached(tenant: str) -> int:
        prompt = TextPrompt(prompt=SYSTEM + "What news?", cache_salt=tenant)
        return llm.generate(prompt, params, use_tqdm=False)[0].num_cached_tokens or 0

    counts = [cached("ahab"), cached("starbuck"), cached("ahab"), cached("starbuck")]
    print(counts)
    assert counts[:2] == [0, 0]
    assert counts[2] == counts[3] > 0
    assert llm.reset_prefix_cache()
    assert cached("ahab") == 0


if __name__ == "__main__":
    main("embedded")
