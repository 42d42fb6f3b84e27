"""The embedded model is its own oracle: transformers reads the same files and generates the same tokens."""

from __future__ import annotations

import os

import pytest
import torch
import transformers

from playhead.engine.tokenizer_files import resolve_model_name
from playhead.llm import EngineConfig
from playhead.sampling_params import SamplingParams
from tests.e2e.embedded import first_difference, is_tie, shared_llm, token_prompts, tokens_of

CONFIG = EngineConfig(dtype="float32", max_model_len=640, max_num_seqs=16, kv_memory_bytes=1 << 25)
# A slice of the campaign, which is 50 prompts and 200 tokens.
NUM_PROMPTS = int(os.environ.get("PLAYHEAD_ORACLE_PROMPTS", "8"))
LONGEST, NUM_TOKENS = 400, int(os.environ.get("PLAYHEAD_ORACLE_TOKENS", "40"))


@pytest.fixture(scope="module")
def reference():
    model = transformers.AutoModelForCausalLM.from_pretrained(resolve_model_name("embedded"), dtype=torch.float32)
    return model.eval()


@torch.no_grad()
def their_tokens(model, prompt: list[int]) -> tuple[int, ...]:
    ids = torch.tensor([prompt])
    generated = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=NUM_TOKENS,
        min_new_tokens=NUM_TOKENS,
        do_sample=False,
        pad_token_id=0,
    )
    return generated[0, len(prompt) :].tolist()


def test_greedy_tokens_are_transformers(reference):
    """Prompts shorter and longer than the window of 128; the end token is banned on both sides."""
    prompts = token_prompts(NUM_PROMPTS, longest=LONGEST, seed=4)
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, min_tokens=NUM_TOKENS, logprobs=2)
    outputs = shared_llm(CONFIG).generate(prompts, params)
    num_ties, wrong = 0, []
    for i, (prompt, ours) in enumerate(zip(prompts, tokens_of(outputs), strict=True)):
        at = first_difference(ours, their_tokens(reference, prompt))
        if at is not None and is_tie(outputs[i], at):
            num_ties += 1
        elif at is not None:
            wrong.append(f"prompt {i} ({len(prompt)} tokens) differs at token {at}")
    print(f"{NUM_PROMPTS} prompts, {num_ties} ties")
    assert wrong == []


def test_prompt_logprobs_are_transformers(reference):
    """Prompts cut into chunks, in one batch: each token's logprob, and the two best at its place."""
    prompts = token_prompts(4, longest=300, seed=5)
    outputs = shared_llm(CONFIG).generate(prompts, SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=2))
    for prompt, output in zip(prompts, outputs, strict=True):
        with torch.no_grad():
            wanted_TV = reference(torch.tensor([prompt])).logits[0].log_softmax(dim=-1)
        first, *tables = output.prompt_logprobs
        assert first is None
        for position, (token, table) in enumerate(zip(prompt[1:], tables, strict=True)):
            assert next(iter(table)) == token
            for one, entry in table.items():
                assert entry.logprob == pytest.approx(float(wanted_TV[position, one]), abs=1e-3)
