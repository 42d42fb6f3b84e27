"""Rotary tables hold the positions that are used."""

from __future__ import annotations

import json

import torch

from playhead.llm import LLM
from playhead.models.build import spec_from_config
from playhead.models.checkpoint.dummy import dummy_decoder
from playhead.models.config import MAX_SIZE
from tests.unit.models.tiny import CONFIG


def rows_of(decoder):
    return [rope.table_PR.shape[0] for rope in decoder.ropes]


def test_a_huge_context_takes_no_memory_until_it_is_used():
    spec = spec_from_config({**CONFIG, "max_position_embeddings": MAX_SIZE})
    decoder = dummy_decoder(spec, dtype=torch.float32, device=torch.device("cpu"))
    assert rows_of(decoder) == []
    decoder.reach(24)
    assert rows_of(decoder) == [24, 24]


def test_tables_grow_and_never_shrink():
    decoder = dummy_decoder(spec_from_config(CONFIG), dtype=torch.float32, device=torch.device("cpu"))
    decoder.reach(24)
    first = decoder.ropes[0].table_PR
    decoder.reach(8)
    assert decoder.ropes[0].table_PR is first
    decoder.reach(40)
    assert torch.equal(decoder.ropes[0].table_PR[:24], first)


def test_an_engine_has_tables_for_its_own_context(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "max_position_embeddings": MAX_SIZE}))
    with LLM(str(tmp_path), load_format="dummy", max_model_len=48, max_num_seqs=2, kv_memory_bytes=1 << 20) as llm:
        assert rows_of(llm.engine.worker.model.decoder) == [48, 48]
