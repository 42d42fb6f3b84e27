"""The setting `batch_invariant`, as far as a CPU can show it."""

from __future__ import annotations

import pytest
from torch._subclasses.fake_tensor import FakeTensorMode

from playhead.engine.build import build_engine
from playhead.engine.config import EngineConfig
from playhead.engine.resolve import check_batch_invariant
from playhead.errors import ConfigError
from playhead.layers.linear import PlainLinear
from playhead.models.build import spec_from_config
from playhead.step.audit import audit_worker
from playhead.testing.order_checkers import LARGE_HEAD, gpu_ops, sums_in_order, sums_in_order_on_a_gpu, unordered_ops
from playhead.testing.tiny_worker import TINY_GPT_OSS, tiny_worker
from playhead.types import Mode


def test_no_op_of_an_invariant_engine_adds_up_in_an_order_of_the_batch():
    assert sums_in_order() == []
    assert sums_in_order_on_a_gpu() == []


def test_a_large_head_of_few_rows_chooses_in_its_kernel_with_the_setting_too():
    with FakeTensorMode():
        assert gpu_ops(spec_from_config(LARGE_HEAD)) >= {"playhead.head_tokens", "playhead.head_logits"}


def test_an_engine_without_the_setting_has_matmuls_of_torch():
    """Otherwise the test above could not fail."""
    assert unordered_ops(tiny_worker(Mode.EAGER)) == ["aten.mm may add up in another order in another batch"]


@pytest.mark.parametrize("mode", [Mode.BREAKABLE, Mode.PIECEWISE])
def test_graphs_of_an_invariant_engine_are_clean_under_the_audit(mode):
    for report in audit_worker(tiny_worker(mode, batch_invariant=True)):
        assert report.ok, report.text()


def test_the_setting_reaches_every_linear_map():
    engine = build_engine("embedded", batch_invariant=True, max_num_seqs=2, max_model_len=32)
    maps = [module for module in engine.worker.model.decoder.modules() if isinstance(module, PlainLinear)]
    assert maps
    assert all(one.is_ordered for one in maps)
    assert engine.config.batch_invariant


def test_a_model_with_experts_is_refused():
    config = EngineConfig(batch_invariant=True)
    with pytest.raises(ConfigError, match="gpt_oss has experts"):
        check_batch_invariant(config, spec_from_config(dict(TINY_GPT_OSS)))
