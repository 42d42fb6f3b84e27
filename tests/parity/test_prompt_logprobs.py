"""Logprobs of a prompt through pages, windows and chunks: the log-softmax of transformers' logits."""

from __future__ import annotations

import pytest
import torch

from playhead.engine.engine import Engine
from playhead.kv.plan import KVLimits
from playhead.models.text.ids_only import IdsOnlyTokenizer
from playhead.sampling_params import SamplingParams
from playhead.step.build import build_worker
from playhead.step.worker import WorkerConfig
from tests.parity.oracle import CASES, VOCAB, WINDOW, ours, reference, their_logits

WINDOWED = [case for case in CASES if case.name in ("gemma3-linear-softcap-untied", "gpt_oss", "cohere2")]
LIMITS = KVLimits(max_context_tokens=64, max_running=3, chunk_tokens=7)


@pytest.mark.parametrize("case", WINDOWED, ids=lambda case: case.name)
def test_prompt_logprobs_are_the_references(case):
    """Three prompts in chunks of at most 7 tokens, all longer than the window, beside each other."""
    model = reference(case)
    engine = Engine(
        build_worker(ours(model), WorkerConfig(kv_memory_bytes=1 << 22, limits=LIMITS, page_size=2)),
        IdsOnlyTokenizer(),
    )
    generator = torch.Generator().manual_seed(0)
    lengths = (3 * WINDOW, 7 * WINDOW, WINDOW + 1)
    prompts = {f"{n}": torch.randint(3, VOCAB, (n,), generator=generator).tolist() for n in lengths}
    for name, prompt in prompts.items():
        engine.add_request(name, prompt, SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=3))
    outputs = {}
    while engine.has_work:
        outputs |= {output.request_id: output for output in engine.step()}
    for name, prompt in prompts.items():
        wanted_TV = their_logits(model, prompt).log_softmax(dim=-1)
        _, *tables = outputs[name].prompt_logprobs
        for position, (token, table) in enumerate(zip(prompt[1:], tables, strict=True)):
            assert next(iter(table)) == token
            for one, entry in table.items():
                assert entry.logprob == pytest.approx(float(wanted_TV[position, one]), abs=1e-3)
