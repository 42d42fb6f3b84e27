"""What ranks say to each other over a socket: frames of numbers, and of JSON while they start. Nothing is unpickled.

A frame is a kind, a length and so many bytes. Arrays travel one after another, each with the place of its dtype in a
list and its length. They have one dimension.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

HEAD = struct.Struct("<BI")
ARRAY_HEAD = struct.Struct("<BI")
BEAT = struct.Struct("<QQ?")
DTYPES = tuple(np.dtype(name) for name in ("int32", "int64", "float32", "bool", "int8", "uint8", "float64"))


class Kind(IntEnum):
    """What a frame says."""

    BEGIN = 0
    """Load this: the first frame of all."""
    JOIN = 1
    """All ranks have loaded; meet here."""
    WRITES = 2
    STEP = 3
    TAIL = 4
    CAPTURE = 5
    AUDIT = 6
    END = 7
    LOADED = 8
    READY = 9
    BEAT = 10
    """From another rank: it lives; orders it has followed, how often it met the others, whether it is at work that may
    take it longer than others: it captures, or computes on a CPU."""
    REPORT = 11
    FAILED = 12


def framed(kind: Kind, payload: bytes = b"") -> bytes:
    """A frame, ready to be sent."""
    return HEAD.pack(kind, len(payload)) + payload


def framed_json(kind: Kind, value: object) -> bytes:
    return framed(kind, json.dumps(value).encode())


def framed_arrays(kind: Kind, arrays: Sequence[npt.NDArray[Any]]) -> bytes:
    """A frame of arrays."""
    parts: list[bytes] = []
    for array in arrays:
        data = np.ascontiguousarray(array).tobytes()
        parts += (ARRAY_HEAD.pack(DTYPES.index(array.dtype), len(data)), data)
    return framed(kind, b"".join(parts))


def arrays_of(payload: bytes) -> list[npt.NDArray[Any]]:
    """The arrays of a frame. Their memory is the frame's: they are read, not written."""
    arrays, at = [], 0
    while at < len(payload):
        dtype, num_bytes = ARRAY_HEAD.unpack_from(payload, at)
        at += ARRAY_HEAD.size
        arrays.append(np.frombuffer(payload, DTYPES[dtype], num_bytes // DTYPES[dtype].itemsize, at))
        at += num_bytes
    return arrays


def read_frame(connection: socket.socket) -> tuple[Kind, bytes] | None:
    """The next frame, waited for; None if the other side has gone."""
    head = read_exactly(connection, HEAD.size)
    if head is None:
        return None
    kind, num_bytes = HEAD.unpack(head)
    payload = read_exactly(connection, num_bytes)
    return None if payload is None else (Kind(kind), payload)


def read_exactly(connection: socket.socket, num_bytes: int) -> bytes | None:
    """So many bytes, or None if the socket ends before."""
    parts: list[bytes] = []
    while num_bytes:
        try:
            data = connection.recv(min(num_bytes, 1 << 20))
        except ConnectionError:
            return None
        if not data:
            return None
        parts.append(data)
        num_bytes -= len(data)
    return b"".join(parts)


class Frames:
    """Frames out of what a socket gives, which may be a part of one or several."""

    def __init__(self) -> None:
        self._unread = bytearray()

    def feed(self, data: bytes) -> list[tuple[Kind, bytes]]:
        """The frames that are complete by now."""
        self._unread += data
        frames, at = [], 0
        while len(self._unread) - at >= HEAD.size:
            kind, num_bytes = HEAD.unpack_from(self._unread, at)
            end = at + HEAD.size + num_bytes
            if len(self._unread) < end:
                break
            frames.append((Kind(kind), bytes(self._unread[at + HEAD.size : end])))
            at = end
        del self._unread[:at]
        return frames
