"""The thread beside the steps tells a rank that ended, one that is silent, and one that is waited for in vain."""

from __future__ import annotations

import os
import signal
import time

import pytest

from playhead.errors import RankLost
from playhead.parallel import group, leader
from playhead.parallel.leader import Ranks

MANY_S = 30.0  # far more than any limit here


@pytest.fixture
def idle_rank(monkeypatch):
    """Ranks of which the other one lives and does nothing, heard of at least once, with short limits."""
    monkeypatch.setattr(leader, "MODULE", "playhead.testing.idle_rank")
    monkeypatch.setattr(leader, "SILENCE_S", 1.0)
    monkeypatch.setattr(group, "PATIENCE_S", 0.5)
    ranks = Ranks(2)
    [other] = ranks.others
    made_s = other.heard_s
    while other.heard_s == made_s:
        time.sleep(0.01)
    other.is_ready = True
    yield ranks
    ranks.close()
    assert other.process.poll() is not None


def wait_for_failure(ranks):
    ends_s = time.monotonic() + MANY_S
    while ranks.failure is None and time.monotonic() < ends_s:
        time.sleep(0.01)


def test_a_rank_that_lives_is_left_alone(idle_rank):
    time.sleep(1.5)
    idle_rank.check()


def test_a_stopped_rank_is_noticed_by_its_silence(idle_rank):
    os.kill(idle_rank.others[0].process.pid, signal.SIGSTOP)
    wait_for_failure(idle_rank)
    with pytest.raises(RankLost, match="rank 1 of 2 has been silent for 1 s"):
        idle_rank.check()


def test_a_wait_for_a_gpu_that_does_not_end_is_broken_off(idle_rank):
    with pytest.raises(RankLost, match=r"rank 1 of 2 did not end a step within 0\.5 s"), idle_rank.waiting():
        wait_for_failure(idle_rank)


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
