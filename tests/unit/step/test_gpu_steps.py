"""Steps as a GPU runs them, on a CPU, give the logits of plain attention over the whole prompt: every family.

The kernels are interpreted. `PLAYHEAD_KERNELS=full` has every family captured and replayed in each mode, with sums in
any order and in a fixed one: `make test-kernels`.
"""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("triton")

from playhead.kernels.triton import head_tiles, projection
from playhead.kv.plan import KVLimits
from playhead.models.families import FAMILIES
from playhead.step.audit import audit_worker
from playhead.testing.gpu_steps import by_gpu_kernels
from playhead.testing.tiny_worker import tiny_worker
from playhead.types import Mode
from tests.family_steps import LIMITS, Requests, config_of

IS_CAMPAIGN = os.environ.get("PLAYHEAD_KERNELS") == "full"
ALL_FAMILIES = [family.model_type for family in FAMILIES]
# Other tests below run these four; the layers of the others are like those of gemma3_text, gemma2, llama or olmo2.
RUN_BELOW = {"cohere2", "gemma3_text", "llama", "qwen2"}
LIKE_OTHERS = {"cohere", "gemma", "gemma3", "mistral", "ministral", "olmo3", "qwen3"}
FAMILIES_RUN = ALL_FAMILIES if IS_CAMPAIGN else [name for name in ALL_FAMILIES if name not in RUN_BELOW | LIKE_OTHERS]
TOLERANCE = 1e-4
MODES = [Mode.EAGER, Mode.FULL, Mode.BREAKABLE, Mode.PIECEWISE] if IS_CAMPAIGN else [Mode.EAGER]


@pytest.fixture(autouse=True)
def products_are_ours(monkeypatch):
    """Products of so few rows take kernels of ours. Left to the BLAS library they would be right too."""

    def refuse(out_TO, x_TI, weight_OI, *_):
        raise AssertionError(f"left to the BLAS library: {tuple(x_TI.shape)} by {tuple(weight_OI.shape)}")

    monkeypatch.setattr(projection, "_multiply", refuse)


def run(config, mode, *, batch_invariant=False, limits=LIMITS):
    with by_gpu_kernels() as kernels:
        worker = tiny_worker(mode, model=config, page_size=4, limits=limits, batch_invariant=batch_invariant)
        requests = Requests(worker)
        requests.take_steps()
    return requests, kernels.called


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("model_type", FAMILIES_RUN)
def test_every_familys_steps_on_a_gpu_give_the_logits_of_plain_attention(model_type, mode):
    requests, called = run(config_of(model_type), mode)
    assert requests.differs(TOLERANCE) == []
    assert {"write_and_extend", "write_and_decode"} <= called
    assert {"project_normed", "project_gated"} & called or model_type == "gpt_oss"


@pytest.mark.parametrize(
    ("model_type", "num_heads", "num_kv_heads", "head_dim"), [("gemma3_text", 2, 1, 256), ("qwen2", 8, 2, 64)]
)
def test_the_product_behind_attention_merges_its_parts(monkeypatch, model_type, num_heads, num_kv_heads, head_dim):
    merged, merge = [], projection.merge_and_multiply
    monkeypatch.setattr(projection, "merge_and_multiply", lambda *args: merged.append(args) or merge(*args))
    widths = {"num_attention_heads": num_heads, "num_key_value_heads": num_kv_heads, "head_dim": head_dim}
    requests, _ = run(config_of(model_type) | widths, Mode.EAGER, limits=replace(LIMITS, max_context_tokens=96))
    assert requests.differs(TOLERANCE) == []
    assert merged


def test_a_head_without_logits_chooses_the_best_token(monkeypatch):
    monkeypatch.setattr(head_tiles, "FEWEST_IDS", 0)
    requests, called = run(config_of("llama") | {"hidden_size": 64}, Mode.EAGER)
    assert requests.chosen_otherwise() == []
    assert "head_tokens" in called


def test_graphs_of_a_gpus_kernels_are_captured_and_replayed():
    requests, _ = run(config_of("cohere2"), Mode.FULL)
    assert requests.differs(TOLERANCE) == []
    assert sum(len(runner.captured) for runner in requests.worker.runners) == 3  # two steps are of one size


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "model_type", [name for name in ALL_FAMILIES if name != "gpt_oss"] if IS_CAMPAIGN else ["gemma3_text"]
)
def test_sums_in_a_fixed_order_give_the_same_logits(model_type, mode):
    requests, called = run(config_of(model_type), mode, batch_invariant=True)
    assert requests.differs(TOLERANCE) == []
    assert "attend_in_order" in called


@pytest.mark.parametrize("batch_invariant", [False, True])
@pytest.mark.parametrize("model_type", ALL_FAMILIES if IS_CAMPAIGN else ())
def test_the_audit_finds_nothing_in_graphs_of_a_gpus_kernels(model_type, batch_invariant):
    if batch_invariant and model_type == "gpt_oss":
        pytest.skip("experts have no fixed order")
    limits = KVLimits(max_context_tokens=4, max_running=2, chunk_tokens=2)
    with by_gpu_kernels(), np.errstate(all="ignore"):  # in padded rows stands what overflows
        worker = tiny_worker(
            Mode.FULL, model=config_of(model_type), page_size=1, limits=limits, batch_invariant=batch_invariant
        )
        reports = audit_worker(worker)
    assert [str(finding) for report in reports for finding in report.findings] == []
