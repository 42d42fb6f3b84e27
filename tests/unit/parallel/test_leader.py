"""The thread beside the steps tells a rank that ended, one that is silent, and one that is waited for in vain."""

from __future__ import annotations

import os
import signal
import socket
import stat
import tempfile
import threading
from contextlib import contextmanager

import pytest

from playhead.errors import RankLost
from playhead.parallel import group, leader, rank
from playhead.parallel.leader import Ranks
from playhead.parallel.rank import Link
from playhead.testing.tiny_worker import tiny_worker


@contextmanager
def ranks_with(monkeypatch, module):
    """Ranks of which the other one is this program of `playhead.testing`, heard of at least once.

    Limits are short, but for that of silence: a rank that lives may have to wait for a core.
    """
    monkeypatch.setattr(leader, "MODULE", f"playhead.testing.{module}")
    monkeypatch.setattr(leader, "SILENCE_S", 30.0)
    monkeypatch.setattr(leader, "QUIET_S", 0.3)
    monkeypatch.setattr(leader, "PATIENCE_S", 0.5)
    ranks = Ranks(2)
    [other] = ranks.others
    while not other.num_beats:
        ranks.check()
        a_moment()
    other.is_ready = True
    yield ranks
    ranks.close()
    assert other.process.poll() is not None


@pytest.fixture
def idle_rank(monkeypatch):
    """The other one lives and does nothing."""
    with ranks_with(monkeypatch, "idle_rank") as ranks:
        yield ranks


def a_moment(seconds=0.01):
    threading.Event().wait(seconds)


def wait_for_failure(ranks):
    while ranks.failure is None:
        a_moment()


def test_a_rank_that_lives_is_left_alone(idle_rank, monkeypatch):
    """Nobody is waited for, so it may be behind for ever; and it beats for longer than the limit of silence."""
    monkeypatch.setattr(leader, "SILENCE_S", 5.0)
    while idle_rank._clock.now_s < 6.0:
        idle_rank.check()  # after a failure the clock stands
        a_moment()
    idle_rank.check()


def test_a_stopped_rank_is_noticed_by_its_silence(idle_rank, monkeypatch):
    monkeypatch.setattr(leader, "SILENCE_S", 1.0)
    os.kill(idle_rank.others[0].process.pid, signal.SIGSTOP)
    wait_for_failure(idle_rank)
    with pytest.raises(RankLost, match="rank 1 of 2 has been silent for 1 s"):
        idle_rank.check()


def test_a_stopped_rank_that_is_waited_for_is_silent_and_not_late(idle_rank, monkeypatch):
    monkeypatch.setattr(leader, "SILENCE_S", 1.0)
    os.kill(idle_rank.others[0].process.pid, signal.SIGSTOP)
    monkeypatch.setattr(group, "num_meetings", lambda: 1)
    wait_for_failure(idle_rank)
    with pytest.raises(RankLost, match="rank 1 of 2 has been silent for 1 s"):
        idle_rank.check()


def test_a_wait_for_a_gpu_that_does_not_end_is_broken_off(idle_rank):
    with pytest.raises(RankLost, match=r"rank 1 of 2 did not end a step within 0\.5 s"), idle_rank.waiting():
        wait_for_failure(idle_rank)


def test_a_rank_that_does_not_come_to_a_collective_is_lost(idle_rank, monkeypatch):
    monkeypatch.setattr(group, "num_meetings", lambda: 1)
    wait_for_failure(idle_rank)
    with pytest.raises(RankLost, match=r"rank 1 of 2 did not come to a collective within 0\.5 s"):
        idle_rank.check()


def test_a_rank_that_captures_is_waited_for_longer(monkeypatch):
    monkeypatch.setattr(leader, "SLOW_PATIENCE_S", 1.5)
    with ranks_with(monkeypatch, "capturing_rank") as ranks:
        monkeypatch.setattr(group, "num_meetings", lambda: 1)
        wait_for_failure(ranks)
        with pytest.raises(RankLost, match=r"rank 1 of 2 did not come to a collective within 1\.5 s"):
            ranks.check()


def test_a_machine_that_stalls_has_lost_no_rank(idle_rank, monkeypatch):
    """A minute goes by between two looks of the thread that watches."""
    clock = idle_rank._clock._clock
    monkeypatch.setattr(idle_rank._clock, "_clock", lambda: clock() + 60)
    a_moment(0.5)
    idle_rank.check()


def test_a_rank_that_ended_is_told_with_its_code(monkeypatch):
    monkeypatch.setattr(leader, "MODULE", "playhead.testing.gone_rank")
    ranks = Ranks(2)
    wait_for_failure(ranks)
    ranks.close()
    with pytest.raises(RankLost, match="rank 1 of 2 ended with code 3"):
        ranks.check()


def test_what_raises_in_a_common_step_ends_all_ranks(idle_rank):
    """The others are inside the step, and nobody will come."""
    with pytest.raises(RankLost, match="rank 0 of 2 left a step by ValueError: no"), idle_rank.surviving():
        raise ValueError("no")
    with pytest.raises(RankLost):
        idle_rank.check()
    assert idle_rank.others[0].process.wait() == -signal.SIGKILL


def test_ranks_that_cannot_all_be_started_leave_nothing(monkeypatch, tmp_path):
    started, stores, start_rank = [], [], leader.start_rank

    def at_most_one(rank, store):
        if started:
            raise OSError("no more processes")
        stores.append(store)
        started.append(start_rank(rank, store))
        return started[0]

    monkeypatch.setattr(leader, "MODULE", "playhead.testing.idle_rank")
    monkeypatch.setattr(leader, "start_rank", at_most_one)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(OSError, match="no more processes"):
        Ranks(3)
    assert started[0].process.poll() is not None
    assert started[0].connection.fileno() == -1
    assert not list(tmp_path.iterdir())
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(stores[0])


def test_ranks_that_are_killed_have_left_no_file(idle_rank):
    """A server's engine ends without a word when its socket does. A directory of its own would stay for ever."""
    assert stat.S_ISREG(os.fstat(idle_rank._store).st_mode)
    assert os.fstat(idle_rank._store).st_nlink == 0


def test_a_rank_that_computes_says_so_on_a_cpu_and_stops_saying_so():
    ours, theirs = socket.socketpair()
    cpu_s = [7.0]
    with ours, theirs:
        link = Link(ours, cpu_clock=lambda: cpu_s[0])
        assert not link.computes()
        cpu_s[0] += 2 * rank.COMPUTING_CPU_S
        assert not link.computes()  # it has no model yet, and nobody waits for it in a collective
        link.worker = tiny_worker()
        assert [link.computes() for _ in range(rank.LOOKS)] == [True] * (rank.LOOKS - 2) + [False] * 2
