"""The first rank's side: it starts the other ranks, tells them of every step, and watches that they live.

A collective in which a rank is missing waits for ever. So a thread beside the steps listens to every rank. A rank that
has ended, says nothing for `SILENCE_S`, or does not come to a collective for `PATIENCE_S`, ends all: the others are
killed, which ends the collective that this process is in, and the step raises `RankLost`, as does every later use.
"""

from __future__ import annotations

import json
import os
import queue
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from playhead.awake import AwakeClock
from playhead.env import for_engine_process
from playhead.errors import PlayheadError, RankLost
from playhead.kv.device_tables import DeviceWrite
from playhead.logs import shown_words
from playhead.parallel import group, wire
from playhead.parallel.wire import Kind
from playhead.step.orders import StepOrder

MODULE = "playhead.parallel.rank"
SILENCE_S = 3.5
"""A rank that runs says something every half second."""
PATIENCE_S = 3.0
"""How long this rank waits for another one in a collective, or for its GPU."""
SLOW_PATIENCE_S = 120.0
"""The same while the other one captures or audits graphs, or computes on a CPU: ranks are not equally fast then."""
QUIET_S = 2.0
"""A rank that was silent for so long is not late but gone."""
TICK_S = 0.2
"""How often the thread beside the steps looks."""
LOADING_SILENCE_S = 120.0
END_S = 5.0
VERDICT_S = 0.5
"""How long to wait for the thread that watches, when a step has failed: it knows which rank is to blame."""


@dataclass(slots=True, kw_only=True, eq=False)  # mutable: it is heard of again and again
class OtherRank:
    """One of the other ranks, as the first one knows it. Its times are of the `AwakeClock`."""

    rank: int
    process: subprocess.Popen[bytes]
    connection: socket.socket
    frames: wire.Frames = field(default_factory=wire.Frames)
    replies: queue.SimpleQueue[tuple[Kind, bytes]] = field(default_factory=queue.SimpleQueue)
    heard_s: float = 0.0
    num_beats: int = 0
    num_orders: int = 0
    num_meetings: int = 0
    came_s: float = 0.0
    """When it was last seen to come to a collective, or nobody waited for it."""
    is_slow: bool = False
    is_ready: bool = False
    error: str = ""

    @property
    def patience_s(self) -> float:
        """How long it may be waited for."""
        return SLOW_PATIENCE_S if self.is_slow else PATIENCE_S

    def how_it_ended(self) -> str:
        """What is known of a process whose socket has ended."""
        try:
            code = self.process.wait(VERDICT_S)
        except subprocess.TimeoutExpired:
            return "closed its socket"
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with code {code}"


def start_rank(rank: int, store: int) -> OtherRank:
    """A process that imports what a rank needs and waits for its first order. It has the store's descriptor too."""
    ours, theirs = socket.socketpair()
    with theirs:
        # -P: a file in the working directory must not be taken for one of ours. The process has this one's path.
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", MODULE, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), store],
                env=for_engine_process(sys.path, shown_words()),
            )
        except BaseException:
            ours.close()
            raise
    return OtherRank(rank=rank, process=process, connection=ours)


class Ranks:
    """The processes of the other ranks, from their start to their end."""

    def __init__(self, num_ranks: int) -> None:
        group.check_no_group()
        self.num_ranks = num_ranks
        self.failure: PlayheadError | None = None
        self._is_closed = False
        self._waits_since_s: float | None = None
        self._clock = AwakeClock(2 * TICK_S)  # of the thread that watches
        self._lock = threading.Lock()
        # Where ranks find each other: a file without a name, which ends with the last of them, however it ends.
        self._store = os.memfd_create("playhead ranks")
        self.others: list[OtherRank] = []
        try:
            for rank in range(1, num_ranks):
                self.others.append(start_rank(rank, self._store))
        except BaseException:  # no process, or no descriptor, is to be had
            self._end_others()
            raise
        self._thread = threading.Thread(target=self._watch, name="playhead ranks", daemon=True)
        self._thread.start()

    @property
    def is_watched(self) -> bool:
        """Whether the thread beside the steps listens."""
        return self._thread.is_alive()

    def begin(self, orders: dict[str, Any]) -> None:
        """Let every rank load its part. `orders` are the same for all but the rank's number and device."""
        device = torch.device(orders["device"])
        for other in self.others:
            own = f"cuda:{(device.index or 0) + other.rank}" if device.type == "cuda" else "cpu"
            self._send(other, wire.framed_json(Kind.BEGIN, {**orders, "rank": other.rank, "device": own}))

    def join(self, device: torch.device) -> None:
        """Wait until all have loaded, then meet them."""
        for other in self.others:
            self.wait_for(other, Kind.LOADED)
        store = f"/proc/self/fd/{self._store}"  # a rank has the same number for it
        frame = wire.framed_json(Kind.JOIN, {"store": store})
        for other in self.others:
            self._send(other, frame)
        with self.surviving():
            group.join(store, rank=0, num_ranks=self.num_ranks, device=device)
        for other in self.others:
            self.wait_for(other, Kind.READY)
            other.heard_s, other.is_ready = self._clock.now_s, True

    def wait_for(self, other: OtherRank, wanted: Kind) -> bytes:
        """What a rank answers, or the failure that ended it."""
        while True:
            try:
                kind, payload = other.replies.get(timeout=0.2)
            except queue.Empty:
                self.check()
                continue
            assert kind is wanted, f"rank {other.rank} said {kind.name} where {wanted.name} was due"
            return payload

    def check(self) -> None:
        """Raise what ended the ranks, if something has."""
        if self.failure is not None:
            raise self.failure

    @contextmanager
    def surviving(self) -> Iterator[None]:
        """Work in which all ranks meet. If it raises here, the ranks no longer agree where they are: all end."""
        self.check()
        try:
            yield
        except BaseException as error:
            lost = self._lost_by(error)
            if isinstance(error, Exception):
                raise lost from error
            raise

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """While this process waits for its GPU: a rank that does not come to a kernel of NCCL shows nowhere else."""
        self._waits_since_s = self._clock.now_s
        try:
            yield
        except Exception as error:
            if self.failure is not None:
                raise self.failure from error
            raise
        finally:
            self._waits_since_s = None
        self.check()

    def tell(self, frame: bytes) -> None:
        """Say the same to all."""
        for other in self.others:
            self._send(other, frame)

    def close(self) -> None:
        """End all ranks. A second call does nothing."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        if self.failure is None:
            for other in self.others:
                try:
                    other.connection.sendall(wire.framed(Kind.END))
                except OSError:
                    continue
        group.leave()
        for other in self.others:
            try:
                other.process.wait(END_S if self.failure is None else 0)
            except subprocess.TimeoutExpired:
                other.process.kill()
        self._thread.join(END_S)  # it listens until the last socket has ended
        self._end_others()

    def _end_others(self) -> None:
        """Kill those that still run, and leave nothing of them."""
        for other in self.others:
            other.process.kill()
            other.process.wait()
            other.connection.close()
        os.close(self._store)

    def _send(self, other: OtherRank, frame: bytes) -> None:
        try:
            other.connection.sendall(frame)
        except OSError as error:
            raise self._lost_by(error) from error

    def _lost_by(self, error: BaseException) -> PlayheadError:
        """The failure that an error in a common step was caused by, or has become."""
        waits_until_s = time.monotonic() + VERDICT_S
        while self.failure is None and time.monotonic() < waits_until_s:
            time.sleep(0.01)
        if self.failure is None:
            self._fail(RankLost(*self._suspect(error), self.num_ranks))
        assert self.failure is not None, "it was just set"
        return self.failure

    def _suspect(self, error: BaseException) -> tuple[int, str]:
        """Who is to blame when nobody has ended: one that told of an error, else a silent one, else this rank."""
        for other in self.others:
            if other.error:
                return other.rank, other.error
        quiet = min(self.others, key=lambda other: other.heard_s)
        silent_s = self._clock.now_s - quiet.heard_s
        if silent_s > QUIET_S:
            return quiet.rank, f"has been silent for {silent_s:.1f} s: it is stopped, or its machine is"
        return 0, f"left a step by {type(error).__name__}: {error}"

    def _fail(self, failure: PlayheadError) -> None:
        """Keep the first failure and kill all other ranks, which ends the collective that this one may be in."""
        with self._lock:
            if self.failure is not None or self._is_closed:
                return
            self.failure = failure
        for other in self.others:
            other.process.kill()
        group.abort()

    # What follows runs in the thread that watches.

    def _watch(self) -> None:
        with selectors.DefaultSelector() as selector:
            for other in self.others:
                selector.register(other.connection, selectors.EVENT_READ, other)
            while selector.get_map() and not (self._is_closed and self.failure):
                heard = selector.select(TICK_S)
                self._clock.tick()
                for key, _ in heard:
                    if not self._hear(key.data):
                        selector.unregister(key.fileobj)
                if not self._is_closed:
                    self._look_for_silence()
                    self._look_for_waits()

    def _hear(self, other: OtherRank) -> bool:
        """Read what a rank has sent, without waiting: a stopped rank may send half a frame. False at the end of all."""
        try:
            data = other.connection.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        if not data:
            if not self._is_closed and self.failure is None:
                self._lose(other, other.error or other.how_it_ended())
            return False
        other.heard_s = self._clock.now_s
        for kind, payload in other.frames.feed(data):
            if kind is Kind.BEAT:
                self._take_beat(other, *wire.BEAT.unpack(payload))
            elif kind is Kind.FAILED:
                name, text, _ = json.loads(payload)
                other.error = f"ended by {name}: {text}"
            else:
                other.replies.put((kind, payload))
        return True

    def _take_beat(self, other: OtherRank, num_orders: int, num_meetings: int, is_slow: bool) -> None:
        if num_meetings > other.num_meetings:
            other.came_s = self._clock.now_s
        other.num_beats += 1
        other.num_orders, other.num_meetings, other.is_slow = num_orders, num_meetings, is_slow

    def _look_for_silence(self) -> None:
        for other in self.others:
            limit_s = SILENCE_S if other.is_ready else LOADING_SILENCE_S
            if self._clock.now_s - other.heard_s > limit_s:
                self._lose(other, f"has been silent for {limit_s:g} s: it is stopped, or its machine is")

    def _look_for_waits(self) -> None:
        """This process may be in a collective, or wait for its GPU, which is in one."""
        now_s, here = self._clock.now_s, group.num_meetings()
        for other in self.others:
            if other.num_meetings >= here:
                other.came_s = now_s
            elif now_s - other.came_s > other.patience_s and now_s - other.heard_s < QUIET_S:
                self._lose(other, f"did not come to a collective within {other.patience_s:g} s")
        since_s = self._waits_since_s
        last = min(self.others, key=lambda other: other.num_orders)
        if since_s is not None and now_s - since_s > last.patience_s:
            self._lose(last, f"did not end a step within {last.patience_s:g} s")

    def _lose(self, other: OtherRank, what: str) -> None:
        self._fail(RankLost(other.rank, what, self.num_ranks))


class RankLeader:
    """The other ranks as a worker has them. It must not hold the worker: that would be a cycle."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.audits: list[list[Any]] = []

    def tell_writes(self, writes: Sequence[DeviceWrite]) -> None:
        """Changes of tables, which every rank has."""
        self.ranks.check()
        self.ranks.tell(wire.framed_arrays(Kind.WRITES, [numbers for write in writes for numbers in write]))

    @contextmanager
    def leading(self, order: StepOrder) -> Iterator[None]:
        with self._leading(wire.framed_arrays(Kind.STEP, order.arrays())):
            yield

    @contextmanager
    def leading_tail(self) -> Iterator[None]:
        with self._leading(wire.framed(Kind.TAIL)):
            yield

    @contextmanager
    def leading_captures(self) -> Iterator[None]:
        with self._leading(wire.framed(Kind.CAPTURE)):
            yield

    @contextmanager
    def leading_audit(self) -> Iterator[None]:
        with self._leading(wire.framed(Kind.AUDIT)):
            yield
        self.audits = [json.loads(self.ranks.wait_for(other, Kind.REPORT)) for other in self.ranks.others]

    @contextmanager
    def _leading(self, frame: bytes) -> Iterator[None]:
        with self.ranks.surviving():
            self.ranks.tell(frame)
            yield

    def waiting(self) -> AbstractContextManager[None]:
        return self.ranks.waiting()

    def close(self) -> None:
        self.ranks.close()
