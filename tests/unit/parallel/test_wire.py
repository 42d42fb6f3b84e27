"""Arrays and frames arrive as they were sent, whole or in pieces."""

from __future__ import annotations

import socket

import numpy as np
import pytest

from playhead.parallel import wire
from playhead.parallel.wire import Kind

ARRAYS = [
    np.array([1, -2, 3], np.int64),
    np.array([], np.int32),
    np.array([0.5, -np.inf], np.float32),
    np.array([True, False]),
    np.arange(10, dtype=np.int32)[::3],
]


def test_arrays_arrive_as_they_were_sent():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(wire.framed_arrays(Kind.STEP, ARRAYS))
        kind, payload = wire.read_frame(theirs)
    found = wire.arrays_of(payload)
    assert kind is Kind.STEP
    assert [array.dtype for array in found] == [array.dtype for array in ARRAYS]
    assert [array.tolist() for array in found] == [array.tolist() for array in ARRAYS]


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_frames_are_found_in_whatever_pieces_a_socket_gives(size):
    sent = wire.framed(Kind.READY) + wire.framed_json(Kind.REPORT, ["x" * 20]) + wire.framed(Kind.BEAT, b"12")
    frames = wire.Frames()
    found = [frame for at in range(0, len(sent), size) for frame in frames.feed(sent[at : at + size])]
    assert [kind for kind, _ in found] == [Kind.READY, Kind.REPORT, Kind.BEAT]
    assert found[1][1] == b'["' + b"x" * 20 + b'"]'


def test_a_socket_that_ends_in_the_middle_of_a_frame_gives_none():
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            ours.sendall(wire.framed(Kind.BEAT, b"12345")[:-2])
        assert wire.read_frame(theirs) is None
