"""The embedded model against transformers on the same CPU, one run: `python -m bench.engine [--new-tokens 64]`."""

from __future__ import annotations

import argparse
import time

import torch
import transformers

from bench.measure import emit
from playhead.engine.tokenizer_files import resolve_model_name
from playhead.llm import LLM, EngineConfig
from playhead.sampling_params import SamplingParams

PROMPT_TOKENS = 32


def prompts(count: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(count)
    drawn = torch.randint(3, 4096, (count, PROMPT_TOKENS), generator=generator)
    return [[1, *row] for row in drawn.tolist()]


def ours(llm: LLM, batch: list[list[int]], new_tokens: int) -> float:
    """Generated tokens per second."""
    params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)
    started = time.perf_counter()
    llm.generate(batch, params)
    return len(batch) * new_tokens / (time.perf_counter() - started)


@torch.no_grad()
def theirs(model: transformers.PreTrainedModel, batch: list[list[int]], new_tokens: int) -> float:
    """The same for transformers, all prompts in one padded batch (here of one length, so without padding)."""
    ids = torch.tensor(batch)
    started = time.perf_counter()
    model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new_tokens,
        min_new_tokens=new_tokens,
        do_sample=False,
        pad_token_id=0,
    )
    return len(batch) * new_tokens / (time.perf_counter() - started)


def middle_rates(
    llm: LLM, model: transformers.PreTrainedModel, batch: list[list[int]], new_tokens: int, rounds: int
) -> dict[str, float]:
    """Both in turns, and the middle of each."""
    rates = [(ours(llm, batch, new_tokens), theirs(model, batch, new_tokens)) for _ in range(rounds)]
    found, reference = (sorted(column)[rounds // 2] for column in zip(*rates, strict=True))
    return {"ours_tok_s": found, "transformers_tok_s": reference, "ratio": found / reference}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    # Room for all prompts in one step, as transformers takes them.
    config = EngineConfig(max_num_seqs=16, max_num_batched_tokens=1024, max_model_len=256, enable_prefix_caching=False)
    llm = LLM(config=config)
    llm.capture_graphs()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        resolve_model_name("embedded"), dtype=torch.float32
    ).eval()
    for count in (1, 16):
        emit("generate", batch=count, **middle_rates(llm, model, prompts(count), args.new_tokens, args.rounds))


if __name__ == "__main__":
    main()
