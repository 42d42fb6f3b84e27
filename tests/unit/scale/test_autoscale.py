"""How many replicas there should be."""

from __future__ import annotations

import pytest

from playhead.errors import ConfigError
from playhead.scale.autoscale import Autoscaler, ScaleLimits

LIMITS = ScaleLimits(min_replicas=1, max_replicas=4, target_load=10, up_after_s=2, down_after_s=30)


def test_autoscaler_adds_replicas_once_the_load_has_been_high_for_a_while():
    scaler = Autoscaler(LIMITS)
    assert scaler.wanted(0, num_sequences=25, num_replicas=1) == 1
    assert scaler.wanted(1, num_sequences=25, num_replicas=1) == 1
    assert scaler.wanted(2, num_sequences=25, num_replicas=1) == 3
    assert scaler.wanted(3, num_sequences=25, num_replicas=3) == 3


def test_autoscaler_forgets_a_peak_that_was_short():
    scaler = Autoscaler(LIMITS)
    scaler.wanted(0, num_sequences=25, num_replicas=1)
    scaler.wanted(1, num_sequences=5, num_replicas=1)
    assert scaler.wanted(2.5, num_sequences=25, num_replicas=1) == 1


def test_autoscaler_takes_replicas_away_that_no_moment_of_a_low_time_needed():
    scaler = Autoscaler(LIMITS)
    assert scaler.wanted(0, num_sequences=3, num_replicas=4) == 4
    assert scaler.wanted(10, num_sequences=19, num_replicas=4) == 4, "two would do"
    assert scaler.wanted(29, num_sequences=0, num_replicas=4) == 4
    assert scaler.wanted(30, num_sequences=0, num_replicas=4) == 2
    assert scaler.wanted(31, num_sequences=0, num_replicas=2) == 2
    assert scaler.wanted(60, num_sequences=0, num_replicas=2) == 1
    assert scaler.wanted(90, num_sequences=0, num_replicas=1) == 1


def test_autoscaler_starts_the_low_time_again_when_the_load_was_high_once():
    scaler = Autoscaler(LIMITS)
    scaler.wanted(0, num_sequences=3, num_replicas=4)
    scaler.wanted(20, num_sequences=30, num_replicas=4)
    assert scaler.wanted(31, num_sequences=3, num_replicas=4) == 4
    assert scaler.wanted(61, num_sequences=3, num_replicas=4) == 1


def test_autoscaler_changes_nothing_between_its_bounds():
    """Two replicas with 13 sequences: one would be too few, and two are not too many."""
    scaler = Autoscaler(LIMITS)
    assert {scaler.wanted(s, num_sequences=13, num_replicas=2) for s in range(200)} == {2}


def test_autoscaler_stays_within_its_limits():
    scaler = Autoscaler(LIMITS)
    scaler.wanted(0, num_sequences=1000, num_replicas=4)
    assert scaler.wanted(9, num_sequences=1000, num_replicas=4) == 4
    with pytest.raises(ConfigError, match="3:2"):
        ScaleLimits(min_replicas=3, max_replicas=2, target_load=1)
