"""A full graph over tokens: one capture with room for every request its tokens could be of."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from playhead.errors import ConfigError
from playhead.graph import CudaGraphBufferRegistry, Dispatcher, FullCapture, GraphRunner, Mode, StepSpec, TapeBackend
from playhead.graph.audit import SampledStep, audit
from playhead.graph.slots import host_vector
from playhead.testing.toy_runners import toy_rig

MAX_REQUESTS = 3


@pytest.fixture
def runner() -> GraphRunner:
    """Each token plus the number of tokens of all requests: a graph that saw one row of `lens` only would miss some."""
    registry = CudaGraphBufferRegistry(max_bs=MAX_REQUESTS, max_num_tokens=8, device="cpu")
    registry.register_slot(host_vector("ids", "tokens", torch.int32))
    registry.register_slot(host_vector("lens", "bs", torch.int32))
    step = StepSpec(
        name="tokens",
        axis="tokens",
        fn=lambda inputs, scope: inputs["ids"] + inputs["lens"].sum(dtype=torch.int32),
        plan=lambda batch, ctx, inputs: None,
        placeholder=registry.null_batch,
    )
    dispatcher = Dispatcher(Mode.FULL, (2, 8))
    made = GraphRunner(step, registry=registry, capture=FullCapture(), backend=TapeBackend(), dispatcher=dispatcher)
    made.capture_all()
    return made


def batch(lens: list[int]) -> dict[str, np.ndarray]:
    return {"ids": np.arange(sum(lens), dtype=np.int32), "lens": np.array(lens, dtype=np.int32)}


@pytest.mark.parametrize(("bucket", "room"), [(2, 2), (8, 3)])
def test_it_has_room_for_as_many_requests_as_its_tokens_could_be_of(runner, bucket, room):
    ctx = runner.context(raw_bs=1, raw_num_tokens=2, bucket=bucket)
    assert (ctx.padded_bs, ctx.padded_num_tokens) == (room, bucket)
    assert {name: len(view) for name, view in runner.graph_inputs(ctx).items()} == {"ids": bucket, "lens": room}


@pytest.mark.parametrize("lens", [[7], [5, 2], [1, 5, 1], [2], [1, 1]])
def test_one_capture_serves_any_number_of_requests(runner, lens):
    runner.run(batch([2, 3, 3]), raw_bs=3, raw_num_tokens=8)  # what a larger step leaves must not count
    result = runner.run(batch(lens), raw_bs=len(lens), raw_num_tokens=sum(lens))
    assert result.decision.mode is Mode.FULL
    assert result.output.tolist() == [i + sum(lens) for i in range(sum(lens))]


def test_it_is_clean_under_the_audit(runner):
    def sample(raw: int, seed: int) -> SampledStep:
        lens = [raw] if seed == 1 or raw == 1 else [1, raw - 1]
        return SampledStep(batch=batch(lens), raw_bs=len(lens), raw_num_tokens=raw)

    report = audit(runner, sample)
    assert report.ok, report.text()


@pytest.mark.parametrize("mode", [Mode.FULL, Mode.PIECEWISE])
def test_a_dispatcher_of_another_mode_than_the_capture_is_refused(mode):
    """Its decisions would name graphs that nobody made."""
    rig = toy_rig("breakable")
    with pytest.raises(ConfigError, match=f"'{mode.value}' graphs and the capture makes 'breakable' ones"):
        GraphRunner(
            rig.runner.step,
            registry=rig.runner.registry,
            capture=rig.runner.capture,
            backend=TapeBackend(),
            dispatcher=Dispatcher(mode, (2, 8)),
        )


def test_a_dispatcher_that_runs_everything_eagerly_goes_with_any_capture():
    rig = toy_rig("breakable")
    dispatcher = Dispatcher(Mode.EAGER, ())
    GraphRunner(
        rig.runner.step,
        registry=rig.runner.registry,
        capture=rig.runner.capture,
        backend=TapeBackend(),
        dispatcher=dispatcher,
    )
