"""A step over requests that have several tokens each, as one that verifies a draft has."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from playhead.errors import ConfigError, GraphError, SlotError
from playhead.graph import (
    CudaGraphBufferRegistry,
    Dispatcher,
    DispatchLimits,
    FullCapture,
    GraphRunner,
    Mode,
    SampledStep,
    StepSpec,
    TapeBackend,
    audit,
)
from playhead.graph.slots import host_vector

PER_REQUEST = 3
MAX_BS = 4


def spec(registry: CudaGraphBufferRegistry, **changes) -> StepSpec:
    def fn(inputs, scope):
        totals = inputs["ids"].view(-1, PER_REQUEST).sum(1, dtype=torch.int32) + inputs["lens"]
        return {"tokens": inputs["ids"] * 2, "totals": totals}

    settings = {"axis": "bs", "num_tokens_per_bs": PER_REQUEST}
    return StepSpec(
        name="verify",
        fn=fn,
        plan=lambda batch, ctx, inputs: None,
        placeholder=registry.null_batch,
        **{**settings, **changes},
    )


def registry_of(max_num_tokens: int = MAX_BS * PER_REQUEST) -> CudaGraphBufferRegistry:
    registry = CudaGraphBufferRegistry(max_bs=MAX_BS, max_num_tokens=max_num_tokens, device="cpu")
    registry.register_slot(host_vector("ids", "tokens", torch.int32))
    registry.register_slot(host_vector("lens", "bs", torch.int32, pad_value=1))
    return registry


def runner_over(registry: CudaGraphBufferRegistry) -> GraphRunner:
    return GraphRunner(
        spec(registry),
        registry=registry,
        capture=FullCapture(),
        backend=TapeBackend(),
        dispatcher=Dispatcher(Mode.FULL, (2, 4), DispatchLimits(max_padding_ratio=100)),
    )


@pytest.fixture
def runner() -> GraphRunner:
    made = runner_over(registry_of())
    made.capture_all()
    return made


def batch(num_requests: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    ids = rng.integers(1, 90, num_requests * PER_REQUEST).astype(np.int32)
    return {"ids": ids, "lens": np.full(num_requests, 7, np.int32)}


def test_buckets_count_requests_and_hold_all_their_tokens(runner):
    ctx = runner.context(raw_bs=3, raw_num_tokens=9, bucket=4)
    assert (ctx.padded_bs, ctx.padded_num_tokens) == (4, 12)
    assert {name: len(view) for name, view in runner.graph_inputs(ctx).items()} == {"ids": 12, "lens": 4}


@pytest.mark.parametrize("num_requests", [1, 2, 3, 4])
def test_outputs_are_cut_by_tokens_or_by_requests(runner, num_requests):
    runner.run(batch(4, seed=1), raw_bs=4, raw_num_tokens=12)  # what a larger step leaves must not count
    given = batch(num_requests)
    result = runner.run(given, raw_bs=num_requests, raw_num_tokens=num_requests * PER_REQUEST)
    assert result.decision.mode is Mode.FULL
    assert result.output["tokens"].tolist() == (given["ids"] * 2).tolist()
    assert result.output["totals"].tolist() == (given["ids"].reshape(-1, PER_REQUEST).sum(1) + 7).tolist()


def test_it_is_clean_under_the_audit(runner):
    def sample(raw: int, seed: int) -> SampledStep:
        return SampledStep(batch=batch(raw, seed), raw_bs=raw, raw_num_tokens=raw * PER_REQUEST)

    report = audit(runner, sample)
    assert report.ok, report.text()


def test_requests_with_another_number_of_tokens_are_refused(runner):
    with pytest.raises(GraphError, match="8 tokens of 3 requests; wanted 3 of each"):
        runner.run(batch(3), raw_bs=3, raw_num_tokens=8)


def test_a_registry_without_room_for_the_tokens_is_refused_at_capture():
    with pytest.raises(SlotError, match="at most 4 rows, 4 tokens"):
        runner_over(registry_of(max_num_tokens=4)).capture_all()


@pytest.mark.parametrize("changes", [{"axis": "tokens"}, {"num_tokens_per_bs": 0}])
def test_tokens_per_request_belong_to_the_batch_axis(changes):
    with pytest.raises(ConfigError, match="num_tokens_per_bs"):
        spec(registry_of(), **changes)
