"""A step in two parts whose second part fails: what it would have computed is in no prefix."""

from __future__ import annotations

from playhead.testing.structured_mutants import check_failed_tail


def test_pages_of_an_eager_step_whose_tail_failed_are_not_hit():
    assert check_failed_tail() == []
