"""Launches in `compiling_ahead` compile their kernels in a pool; launches after it are as they would have been."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.uninterpreted import output_of

pytest.importorskip("triton")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What the script saw."""
    script = Path(__file__).with_name("compile_two_ahead.py")
    return json.loads(output_of(script, TRITON_CACHE_DIR=str(tmp_path_factory.mktemp("triton"))))


def test_a_launch_compiles_and_does_not_launch_and_a_later_one_finds_the_kernel(found):
    assert found["compiled"] == ["fill", "fill"]  # one for the pool, one for the other thread; not one for each launch
    assert found["compiled_by_the_launch"] == []
    assert found["launched"] == ["other", "MainThread"]


def test_launches_of_other_threads_launch(found):
    assert found["launched_inside"] == ["other"]


def test_a_kernel_that_cannot_be_compiled_raises_its_own_error_where_it_is_launched(found):
    assert found["problem_ahead"] is None
    assert found["problem_is_the_same"]


def test_afterwards_neither_threads_nor_changes_are_left(found):
    assert found["threads_after"] == 1
    assert found["runs_are_launches_again"]
