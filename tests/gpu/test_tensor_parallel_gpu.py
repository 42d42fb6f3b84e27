"""One rank that meets itself over NCCL: captured, replayed, and equal to no rank at all.

Several GPUs are not here: what several ranks compute is tested by gloo on a CPU.
"""

from __future__ import annotations

import pytest
import torch

from playhead.engine.config import EngineConfig
from playhead.kernels.collectives import gather_columns, largest_over_ranks_, sum_over_ranks_
from playhead.kernels.tokens import choose_scratch
from playhead.kernels.vocabulary import choose_keys, embed_share, tokens_of
from playhead.sampling_params import GREEDY_BELOW, SamplingParams
from playhead.step.audit import audit_worker
from playhead.testing.lone_rank import group_of_one, lone_engine
from playhead.types import TPMode

GPU = torch.device("cuda", 0)


@pytest.fixture(scope="module")
def world():
    with group_of_one(GPU):
        yield


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("draws", [False, True])
def test_the_largest_key_of_all_shares_is_the_choice_among_all_ids(dtype, draws):
    num_rows, num_ids = 5, 5000
    logits = torch.randn(num_rows, num_ids, device=GPU).to(dtype)
    logits[1, 17] = logits[1, 4099] = 50  # the lower id of two equal ones
    logits[2] = torch.nan
    temperature = torch.tensor([0.7, 0.0, 0.7, 1.3, 0.0], device=GPU)
    seeds, positions = (torch.randint(0, 2**62, (num_rows,), device=GPU) for _ in range(2))
    whole, best = (torch.full((num_rows,), 7, device=GPU) for _ in range(2))
    scratch = choose_scratch(num_rows, num_ids, GPU)
    choose_keys(logits, temperature, seeds, positions, whole, *scratch, 0, GREEDY_BELOW, draws)
    best.fill_(-(2**63))
    for first, end in ((0, 2048), (2048, 4096), (4096, 5000)):
        part = torch.full((num_rows,), 7, device=GPU)
        numbers = (temperature, seeds, positions)
        choose_keys(logits[:, first:end].contiguous(), *numbers, part, *scratch, first, GREEDY_BELOW, draws)
        best = torch.maximum(best, part)
    on_cpu = torch.empty(num_rows, dtype=torch.int64)
    numbers = (temperature.cpu(), seeds.cpu(), positions.cpu())
    choose_keys(logits.cpu(), *numbers, on_cpu, *choose_scratch(num_rows, num_ids), 0, GREEDY_BELOW, draws)
    assert torch.equal(best, whole)
    assert tokens_of(whole).tolist() == tokens_of(on_cpu).tolist()


def test_shares_of_an_embedding_sum_up_to_it():
    table = torch.randn(300, 70, dtype=torch.bfloat16, device=GPU)
    ids = torch.randint(0, 300, (9,), dtype=torch.int32, device=GPU)
    shares = [embed_share(ids, table[a:b], 3.5, a) for a, b in ((0, 112), (112, 224), (224, 300))]
    assert torch.equal(sum(shares), (table[ids.long()].float() * 3.5).bfloat16())


def test_collectives_of_one_rank_are_captured_and_replayed(world):
    x, keys = torch.ones(4, 8, device=GPU), torch.arange(4, device=GPU)
    graph = torch.cuda.CUDAGraph()
    sum_over_ranks_(x)  # the communicator is made by the first call, outside the capture
    with torch.cuda.graph(graph):
        sum_over_ranks_(x)
        gather_columns(x, x, 8, 1)
        largest_over_ranks_(keys)
        doubled = x * 2
    x.fill_(5)
    graph.replay()
    assert doubled.unique().tolist() == [10.0]


@pytest.mark.parametrize("mode", list(TPMode))
def test_one_rank_gives_the_tokens_of_none_and_its_audit_is_clean(world, mode):
    sizes = {"max_model_len": 64, "max_num_seqs": 4, "max_num_batched_tokens": 16, "kv_memory_bytes": 1 << 26}
    config = EngineConfig(device="cuda", **sizes)
    tokens = {}
    for one in (None, mode):
        engine = lone_engine("embedded", config, one)
        kinds = [{"temperature": 0.0}, {"seed": 3}, {"seed": 4, "top_p": 0.8}, {"seed": 5, "logprobs": 2}]
        for i, kind in enumerate(kinds):
            engine.add_request(f"{i}", [5, 6, 7 + i], SamplingParams(max_tokens=24, ignore_eos=True, **kind))
        found = {}
        while engine.has_work:
            found |= {out.request_id: list(out.outputs[0].token_ids) for out in engine.step()}
        tokens[one] = found
    assert tokens[mode] == tokens[None]
    assert [str(finding) for report in audit_worker(engine.worker) for finding in report.findings] == []
