"""A rank that follows: `python -m playhead.parallel.rank FD`, started by the first rank.

It loads its part of the model, meets the others, and runs what it is told over the socket FD. It ends when the socket
does: a first rank that was killed leaves no rank behind, even if this one is in the middle of a step.

    main thread    order -> step
    beat thread    every half second: alive, and how far; ends the process when the socket has ended
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from playhead.graph.shapes import DispatchLimits
from playhead.kv.device_tables import DeviceWrite
from playhead.kv.plan import KVLimits
from playhead.layers.shard import Shard
from playhead.models.load import describe_model, load_weights
from playhead.parallel import group, wire
from playhead.parallel.wire import Kind
from playhead.step.audit import audit_here
from playhead.step.build import build_worker
from playhead.step.orders import Follower, StepOrder
from playhead.step.worker import Worker, WorkerConfig
from playhead.types import LoadFormat, Mode, TPMode

BEAT_S = 0.5
LOOKS = 5
"""Beats over which a rank that is waited for may be seen to compute: two seconds."""
COMPUTING_CPU_S = 0.02
"""Of a processor, in that time: less is the noise of a rank that waits."""


class Link:
    """This rank's end of the socket. Two threads write. `cpu_clock` says how long the process has computed."""

    def __init__(self, connection: socket.socket, cpu_clock: Callable[[], float] = time.process_time) -> None:
        self.connection, self._cpu_clock = connection, cpu_clock
        self._writing = threading.Lock()
        self.num_orders = 0
        self.worker: Worker | None = None
        self.is_auditing = False
        self._cpu_s: deque[float] = deque(maxlen=LOOKS)

    @property
    def is_capturing(self) -> bool:
        """Whether this rank is at work that takes ranks unequally long. Any thread may ask."""
        return self.is_auditing or (self.worker is not None and self.worker.is_capturing)

    def computes(self) -> bool:
        """Whether this rank has used a processor lately. For the beat thread.

        On a CPU that shows that a rank which others wait for is on its way: it has much to compute, or shares its cores
        with other processes. A GPU's driver may use a processor to wait.
        """
        self._cpu_s.append(self._cpu_clock())
        is_on_cpu = self.worker is not None and self.worker.device.type == "cpu"
        return is_on_cpu and self._cpu_s[-1] - self._cpu_s[0] >= COMPUTING_CPU_S

    def send(self, frame: bytes) -> None:
        with self._writing:
            self.connection.sendall(frame)

    def keep_beating(self) -> None:
        """Say every half second how far this rank is, and end the process when nobody listens any more."""
        ended = select.poll()
        ended.register(self.connection, select.POLLRDHUP)
        while not ended.poll(1000 * BEAT_S):
            try:
                is_slow = self.computes() or self.is_capturing
                beat = wire.BEAT.pack(self.num_orders, group.num_meetings(), is_slow)
                self.send(wire.framed(Kind.BEAT, beat))
            except OSError:
                break
        os._exit(0)  # a step may be stuck, and there is nothing to save


def config_of(fields: dict[str, Any]) -> WorkerConfig:
    """The sizes that the first rank has fixed, the same for all."""
    limits, dispatch = KVLimits(**fields.pop("limits")), DispatchLimits(**fields.pop("dispatch"))
    return WorkerConfig(limits=limits, dispatch=dispatch, token_mode=Mode(fields.pop("token_mode")), **fields)


def load(link: Link, begin: dict[str, Any]) -> Worker:
    """This rank's part of the model, then the meeting with all others."""
    torch.set_num_threads(begin["num_threads"])
    shard = Shard(rank=begin["rank"], num_ranks=begin["num_ranks"], mode=TPMode(begin["mode"]), is_grouped=True)
    device = torch.device(begin["device"])
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dtype = {str(one): one for one in (torch.float32, torch.bfloat16, torch.float16)}[begin["dtype"]]
    load_format = LoadFormat(begin["load_format"])
    description = describe_model(begin["path"], config_only=load_format is LoadFormat.DUMMY)
    decoder = load_weights(description, dtype=dtype, device=device, load_format=load_format, shard=shard)
    worker = build_worker(decoder, config_of(begin["worker"]))
    link.send(wire.framed(Kind.LOADED))
    frame = wire.read_frame(link.connection)
    if frame is None:
        sys.exit(0)
    group.join(json.loads(frame[1])["store"], rank=shard.rank, num_ranks=shard.num_ranks, device=device)
    link.send(wire.framed(Kind.READY))
    return worker


def follow(link: Link, worker: Worker, follower: Follower) -> None:
    """Run what comes, until the first rank says that it ends."""
    link.worker = worker
    while (frame := wire.read_frame(link.connection)) is not None:
        kind, payload = frame
        if kind is Kind.STEP:
            follower.step(StepOrder.of(wire.arrays_of(payload), worker))
        elif kind is Kind.WRITES:
            follower.write(writes_of(wire.arrays_of(payload)))
        elif kind is Kind.TAIL:
            follower.tail()
        elif kind is Kind.CAPTURE:
            worker.capture_all()
        elif kind is Kind.AUDIT:
            link.is_auditing = True
            reports = [[report.name, report.ok, report.text()] for report in audit_here(worker)]
            link.is_auditing = False
            link.send(wire.framed_json(Kind.REPORT, reports))
        elif kind is Kind.END:
            return
        link.num_orders += 1


def writes_of(arrays: Sequence[Any]) -> list[DeviceWrite]:
    """Places and values of each change of the tables."""
    return [DeviceWrite(places, values) for places, values in zip(arrays[0::2], arrays[1::2], strict=True)]


def main(descriptor: int, make_follower: Callable[[Worker], Follower] = Follower) -> int:
    """Serve the first rank over this socket."""
    # Ctrl-C and a service's stop signal reach every process. The first rank decides, and closes the socket.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.set_inheritable(descriptor, False)
    link = Link(socket.socket(fileno=descriptor))
    threading.Thread(target=link.keep_beating, name="playhead beat", daemon=True).start()
    try:
        frame = wire.read_frame(link.connection)
        if frame is not None:
            worker = load(link, json.loads(frame[1]))
            follow(link, worker, make_follower(worker))
    except Exception as error:  # noqa: BLE001  the first rank must hear of any error
        link.send(wire.framed_json(Kind.FAILED, [type(error).__name__, str(error), traceback.format_exc()]))
        return 1
    group.leave()
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
