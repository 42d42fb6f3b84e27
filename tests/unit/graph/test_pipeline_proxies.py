"""A stage of a pipeline: hidden states come from the previous stage, through every capture."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from playhead.errors import SlotError
from playhead.graph import (
    BreakOp,
    Check,
    CudaGraphBufferRegistry,
    Dispatcher,
    DispatchLimits,
    GraphRunner,
    GraphSlot,
    Mode,
    PaddingPolicy,
    SampledStep,
    StepSpec,
    TapeBackend,
    TensorSpec,
    audit,
)
from playhead.graph.slots import host_vector
from playhead.testing.toy_runners import KINDS, toy_capture

WIDTH = 4


def add_scale(live, inputs, outputs, site):
    outputs[0].copy_(inputs[0] * 2)


@pytest.fixture(params=KINDS)
def runner(request) -> GraphRunner:
    """hidden -> break(hidden + id) + residual, over tokens, or over requests where the graph is full."""
    axis = "bs" if request.param == "full" else "tokens"
    registry = CudaGraphBufferRegistry(max_bs=8, max_num_tokens=8, device="cpu")
    registry.register_slot(host_vector("ids", "tokens", torch.float32))
    for name in ("hidden", "residual"):
        registry.register_slot(
            GraphSlot(
                name=f"pp_proxy.{name}",
                shape_fn=lambda bs, tokens: (tokens, WIDTH),
                dtype=torch.float32,
                axis="tokens",
                padding_policy=PaddingPolicy.ZERO,
                proxy=name,
            )
        )
    op = BreakOp("playhead_test::stage", run=add_scale, outputs=lambda inputs: [TensorSpec.like(inputs[0])])

    def fn(inputs, scope):
        h = inputs["pp_proxy.hidden"] + inputs["ids"].unsqueeze(1)
        return scope.call(op, h, site=0)[0] + inputs["pp_proxy.residual"]

    capture = toy_capture(request.param, max_rows=8, device=torch.device("cpu"))
    step = StepSpec(
        name="stage", axis=axis, fn=fn, plan=lambda batch, ctx, inputs: None, placeholder=registry.null_batch
    )
    made = GraphRunner(
        step,
        registry=registry,
        capture=capture,
        backend=TapeBackend(),
        dispatcher=Dispatcher(capture.mode, (4, 8), DispatchLimits(max_padding_ratio=100)),
    )
    made.capture_all()
    return made


def proxies(rows: int, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(rows, WIDTH, generator=generator) for name in ("hidden", "residual")}


def run(runner: GraphRunner, rows: int, given):
    return runner.run({"ids": np.ones(rows, np.float32)}, raw_bs=rows, raw_num_tokens=rows, pp_proxy_tensors=given)


def test_a_captured_stage_reads_what_the_previous_stage_handed_over(runner):
    for rows, seed in ((3, 1), (8, 2), (5, 3)):
        given = proxies(rows, seed)
        result = run(runner, rows, given)
        assert result.decision.mode is not Mode.EAGER
        assert torch.equal(result.output, (given["hidden"] + 1) * 2 + given["residual"])


def test_a_stage_is_clean_under_the_audit(runner):
    def sample(raw: int, seed: int) -> SampledStep:
        batch = {"ids": np.random.default_rng(seed).random(raw, np.float32)}
        return SampledStep(batch=batch, raw_bs=raw, raw_num_tokens=raw, pp_proxy_tensors=proxies(raw, seed))

    report = audit(runner, sample)
    assert report.ok, report.text()
    assert report.checked[Check.REPLAY_VS_EAGER] > 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda given: None, r"missing sources \['pp_proxy_tensors\[hidden\]', 'pp_proxy_tensors\[residual\]'\]"),
        (lambda given: {"hidden": given["hidden"]}, r"missing sources \['pp_proxy_tensors\[residual\]'\]"),
        (lambda given: given | {"extra": given["hidden"]}, r"unknown sources \['pp_proxy_tensors\[extra\]'\]"),
        (lambda given: given | {"hidden": given["hidden"][:1]}, "cut or stretch"),
        (lambda given: given | {"hidden": given["hidden"].double()}, "never convert"),
    ],
)
def test_pipeline_tensors_are_checked_like_any_source(runner, change, says):
    with pytest.raises(SlotError, match=says):
        run(runner, 3, change(proxies(3)))


@pytest.mark.parametrize("changes", [{"staged": True}, {"source_fn": lambda batch, ctx: None}, {"copy_from_fb": False}])
def test_a_pipeline_slot_has_no_other_source(changes):
    with pytest.raises(SlotError, match="proxy with"):
        GraphSlot(
            name="x",
            shape_fn=lambda bs, tokens: (tokens,),
            dtype=torch.float32,
            axis="tokens",
            padding_policy=PaddingPolicy.ZERO,
            proxy="x",
            **changes,
        )
