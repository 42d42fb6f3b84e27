"""What a decode graph of the engine holds: attention's look-ups once, and ops that a replay repeats without torch."""

from __future__ import annotations

import pytest

from playhead.attention.cpu import CpuBackend
from playhead.graph.op_facts import op_name
from playhead.testing.tiny_worker import tiny_worker
from tests.counting import CalledOps


@pytest.fixture
def decode_graph():
    worker = tiny_worker(page_size=2)
    assert isinstance(worker.model.backend, CpuBackend)
    worker.decode.capture_bucket(2)
    (recording,) = worker.decode.captured[2].recordings
    return worker, recording


def test_the_layers_of_a_kv_group_look_their_keys_up_once(decode_graph):
    """Two window layers and a full one: two groups, three layers."""
    worker, recording = decode_graph
    layers = worker.model.layers
    assert [layer.kv_group for layer in layers] == [1, 1, 0]
    assert recording.log.count("playhead::key_cells_into") == 2
    assert recording.log.count("playhead::decode_cells") == len(layers)


def test_a_replay_of_decode_repeats_every_op_of_ours_without_torch(decode_graph):
    _, recording = decode_graph
    assert any(op.name.startswith("playhead::") for op in recording.log.ops)
    with CalledOps() as ops:
        recording.replay()
    assert ops.called, "matmuls are torch's"
    assert [op for op in ops.called if op_name(op).startswith("playhead::")] == []
