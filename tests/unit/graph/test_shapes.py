"""Dispatch: which size a step runs in, and why."""

from __future__ import annotations

import pytest

from playhead.errors import ConfigError
from playhead.graph import Decision, Dispatcher, DispatchLimits, Mode, Reason, bucket_sizes
from playhead.graph.shapes import token_sizes


def dispatcher(captured=(4, 8), **limits) -> Dispatcher:
    made = Dispatcher(Mode.FULL, (4, 8), DispatchLimits(**limits))
    for size in captured:
        made.mark_captured(size, 100)
    return made


@pytest.mark.parametrize(
    ("raw", "mode", "bucket", "reason"),
    [
        (3, Mode.FULL, 4, Reason.CAPTURED),
        (4, Mode.FULL, 4, Reason.CAPTURED),
        (5, Mode.FULL, 8, Reason.CAPTURED),
        (2, Mode.FULL, 4, Reason.CAPTURED),
        (1, Mode.EAGER, 1, Reason.TOO_MUCH_PADDING),
        (9, Mode.EAGER, 9, Reason.TOO_LARGE),
        (0, Mode.EAGER, 0, Reason.EMPTY),
    ],
)
def test_decisions(raw, mode, bucket, reason):
    assert dispatcher().decide(raw) == Decision(mode=mode, bucket=bucket, reason=reason)


def test_a_size_that_was_not_captured_runs_eagerly():
    assert dispatcher(captured=(8,)).decide(4).reason is Reason.NOT_CAPTURED


def test_a_lazy_dispatcher_asks_for_the_capture_within_its_budget():
    lazy = dispatcher(captured=(8,), lazy=True, budget_bytes=200)
    assert lazy.decide(4).reason is Reason.CAPTURE_NOW
    lazy.mark_captured(4, 101)
    assert lazy.spent_bytes == 201
    tight = dispatcher(captured=(8,), lazy=True, budget_bytes=199)
    assert tight.decide(4) == Decision(mode=Mode.EAGER, bucket=4, reason=Reason.OVER_BUDGET)


def test_reasons_are_counted():
    counted = dispatcher()
    for raw in (3, 3, 9, 1):
        counted.decide(raw)
    assert counted.reasons == {Reason.CAPTURED: 2, Reason.TOO_LARGE: 1, Reason.TOO_MUCH_PADDING: 1}


def test_no_buckets_means_graphs_are_off():
    assert Dispatcher(Mode.FULL, ()).decide(3).reason is Reason.DISABLED


@pytest.mark.parametrize("buckets", [(8, 4), (4, 4), (0, 4)])
def test_unordered_buckets_are_refused(buckets):
    with pytest.raises(ConfigError, match="ascending"):
        Dispatcher(Mode.FULL, buckets)


def test_bucket_sizes_of_the_docstring():
    assert bucket_sizes(48) == (1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48)


@pytest.mark.parametrize("largest", [1, 2, 3, 7, 64, 100, 512, 8192])
def test_bucket_sizes_never_pad_over_twice(largest):
    sizes = bucket_sizes(largest)
    assert sizes[-1] == largest
    everything = Dispatcher(Mode.FULL, sizes)
    for size in sizes:
        everything.mark_captured(size, 0)
    assert all(everything.decide(raw).reason is Reason.CAPTURED for raw in range(1, largest + 1))


def test_a_full_step_over_tokens_is_not_padded():
    assert token_sizes(8448, 256)[-4:] == (7680, 8192, 8448, 8704)
    assert token_sizes(8192, 256) == bucket_sizes(8448)
    for chunk_tokens in (1, 13, 5000):
        sizes = token_sizes(chunk_tokens, 3)
        assert sizes[-1] == chunk_tokens + 3
        assert chunk_tokens in sizes
        assert list(sizes) == sorted(set(sizes))


def test_bucket_sizes_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="at least 1"):
        bucket_sizes(0)
