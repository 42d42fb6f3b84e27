"""The packed copy: layout, ring and order of events."""

from __future__ import annotations

import torch

from playhead.graph.staging import ALIGNMENT_BYTES, HostPort, StagingRing, field_view, lay_out
from playhead.testing.fake_stream import LaggingPort
from playhead.testing.graph_checkers import interrupted_send, policy_batch, policy_registry, square


def test_lay_out_aligns_every_field():
    fields, num_bytes = lay_out([((3,), torch.int32, 0), ((5,), torch.int32, 0)])
    assert [place.offset_bytes for place in fields] == [0, ALIGNMENT_BYTES]
    assert num_bytes == 2 * ALIGNMENT_BYTES


def test_a_stage_starts_as_padding():
    fields, num_bytes = lay_out([((4,), torch.int64, -1), ((2, 2), torch.float32, 0.5)])
    ring = StagingRing(fields, torch.zeros(num_bytes, dtype=torch.uint8), HostPort(), 2)
    stage = ring.acquire()
    assert stage.fields[0].tolist() == [-1] * 4
    assert stage.fields[1].tolist() == [[0.5, 0.5], [0.5, 0.5]]


def test_submit_carries_all_fields_at_once():
    fields, num_bytes = lay_out([((2,), torch.int32, 0), ((2,), torch.bool, 0)])
    arena = torch.zeros(num_bytes, dtype=torch.uint8)
    ring = StagingRing(fields, arena, HostPort(), 2)
    stage = ring.acquire()
    stage.fields[0][:] = [7, 8]
    stage.fields[1][:] = [True, False]
    ring.submit(stage)
    assert field_view(arena, fields[0]).tolist() == [7, 8]
    assert field_view(arena, fields[1]).tolist() == [True, False]


def test_a_lagging_device_gets_the_bytes_of_each_step():
    port = LaggingPort()
    registry = policy_registry(port=port)
    for step in range(20):
        registry.fill_from(policy_batch(registry, 1 + step % 6, step), square(1 + step % 6, 6))
    port.drain()
    assert port.violations == []
    assert registry.get_slot("positions").rows(0, 2).tolist() == [[19, 19], [19, 19]]


def test_a_copy_whose_start_was_interrupted_is_waited_for():
    assert interrupted_send() == []


def test_the_fake_device_notices_a_host_that_does_not_wait():
    """The checker can fail: two copies from one buffer with no wait between them."""
    port = LaggingPort()
    src = port.host_bytes(4)
    channel = port.channel(torch.zeros(4, dtype=torch.uint8), src)
    channel.send()
    src.fill_(1)
    channel.send()
    port.drain()
    assert len(port.violations) == 2
