"""A rank that meets itself: everything that ranks share is declared, and nothing changes."""

from __future__ import annotations

import torch

from playhead.engine.config import EngineConfig
from playhead.step.audit import audit_worker
from playhead.testing.lone_rank import group_of_one, lone_engine
from playhead.types import TPMode


def test_the_audit_of_a_rank_is_clean():
    """The rank is alone here; `tests/scale` audits several."""
    config = EngineConfig(max_model_len=32, max_num_seqs=1, max_num_batched_tokens=2, kv_memory_bytes=1 << 22)
    with group_of_one(torch.device("cpu")):
        worker = lone_engine("embedded", config, TPMode.EXACT).worker
        assert [report.text() for report in audit_worker(worker) if not report.ok] == []
