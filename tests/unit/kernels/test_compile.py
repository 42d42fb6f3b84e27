"""Every kernel compiles for the GPU it is meant for, and takes no more of it than the launch counts on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from playhead.kernels.splits import NUM_SMS, PROGRAMS_PER_SM
from playhead.kernels.triton.projection_tiles import gated_tiles, split_tiles, tiles_for
from playhead.testing.tile_room import shared_bytes
from tests.uninterpreted import output_of
from tests.unit.kernels.launches import meta

SM_REGISTERS = 65536
SM_SHARED_BYTES = 228 * 1024
BLOCK_RESERVED_BYTES = 1024  # what each block takes of it beside its own
BLOCK_SHARED_BYTES = 227 * 1024

# Of one thread. A few words around the loops are cheap; what the table of tiles avoids is hundreds, inside them.
SPILLED_BYTES = 128


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """What each kernel takes, by name."""
    script = Path(__file__).with_name("compile_for_hopper.py")
    printed = output_of(script, TRITON_CACHE_DIR=str(tmp_path_factory.mktemp("triton")))
    rows = [json.loads(line) for line in printed.splitlines()]
    return {row["name"]: row for row in rows}


def test_every_kernel_fits_an_sm_without_spilling_much(kernels):
    for name, row in kernels.items():
        assert row["shared_bytes"] <= BLOCK_SHARED_BYTES, name
        assert row["stack_bytes"] <= SPILLED_BYTES, name


def test_as_many_decode_programs_fit_an_sm_as_the_splits_count_on(kernels):
    rows = [row for name, row in kernels.items() if name.startswith("decode")]
    turning = [row for row in rows if row["name"].endswith("with the newest key")]
    assert (len(rows), len(turning)) == (7, 2)
    for row in turning:  # of few requests, which have registers for two programs
        assert 2 * row["registers"] * 32 * row["num_warps"] <= SM_REGISTERS, row
        assert row["stack_bytes"] == 0, row
    for row in (row for row in rows if row not in turning):
        assert PROGRAMS_PER_SM * (row["shared_bytes"] + BLOCK_RESERVED_BYTES) <= SM_SHARED_BYTES, row
        assert PROGRAMS_PER_SM * row["registers"] * 32 * row["num_warps"] <= SM_REGISTERS, row
        assert row["stack_bytes"] <= 16, row


@pytest.mark.parametrize(
    ("name", "num_programs"),
    [
        ("whole requests 256, one wave", 1),
        ("whole requests 256", 2),
        ("many requests 64", 9),
        ("many requests 64, 16 heads", 9),
        ("many requests 128", 6),
        ("many requests 256", 4),
    ],
)
def test_as_many_programs_of_many_requests_fit_an_sm_as_their_tiles_say(kernels, name, num_programs):
    row = kernels[name]
    assert num_programs * (row["shared_bytes"] + BLOCK_RESERVED_BYTES) <= SM_SHARED_BYTES, row
    assert num_programs * row["registers"] * 32 * row["num_warps"] <= SM_REGISTERS, row
    assert row["stack_bytes"] == 0, row


@pytest.mark.parametrize(("name", "num_programs"), [("whole requests 256, one wave", 1), ("whole requests 256", 2)])
def test_as_many_programs_in_order_fit_an_sm(kernels, name, num_programs):
    row = kernels[f"in order: {name}"]
    assert num_programs * (row["shared_bytes"] + BLOCK_RESERVED_BYTES) <= SM_SHARED_BYTES, row
    assert num_programs * row["registers"] * 32 * row["num_warps"] <= SM_REGISTERS, row
    assert row["stack_bytes"] <= 32, row


def fitted_rule(x, weight):
    return gated_tiles(x, weight, None)


@pytest.mark.parametrize(
    ("name", "rule", "num_rows", "shape"),
    [
        ("project 8 rows", tiles_for, 8, (1536, 1152)),
        ("project 8 rows in parts", split_tiles, 8, (1152, 1024)),
        ("one an SM: 32 rows in halves", tiles_for, 32, (1536, 1152)),
        ("three an SM: 32 rows in parts", split_tiles, 32, (2560, 2048)),
        ("project 256 rows in parts", split_tiles, 256, (1152, 6912)),
        ("one an SM: fitted 128 rows", fitted_rule, 128, (20480, 2560)),
    ],
)
def test_a_product_takes_the_memory_that_is_counted_on(kernels, name, rule, num_rows, shape):
    tiles = rule(meta(num_rows, shape[1]), meta(*shape))
    assert kernels[name]["shared_bytes"] == shared_bytes(tiles)


@pytest.mark.parametrize(("words", "per_sm"), [("one an SM", 1), ("two an SM", 2), ("three an SM", 3)])
def test_all_programs_of_a_product_run_at_once(kernels, words, per_sm):
    rows = [row for name, row in kernels.items() if name.startswith(words)]
    assert rows
    for row in rows:
        assert row["num_programs"] <= per_sm * NUM_SMS, row
        assert per_sm * (row["shared_bytes"] + BLOCK_RESERVED_BYTES) <= SM_SHARED_BYTES, row
        assert per_sm * row["registers"] * 32 * row["num_warps"] <= SM_REGISTERS, row
        assert row["stack_bytes"] == 0, row


@pytest.mark.parametrize(
    ("name", "num_loads"),
    [
        ("two an SM: 8 rows gated", 64 * 512 // (8 * 128)),
        ("three an SM: 8 rows gated", 64 * 256 // (8 * 128)),
        ("two an SM: 16 rows gated", 64 * 256 // (8 * 128)),
        ("three an SM: 64 rows gated", 0),
        ("one an SM: 32 rows in parts", 64 * 256 // (8 * 128)),
        ("one an SM: 32 rows in halves", 64 * 256 // (8 * 128)),
        ("one an SM: 256 rows gated", 0),
        ("two an SM: ring of 1 row", 6 * 64 * 128 // (8 * 128)),
        ("two an SM: ring of 8 rows", 7 * 64 * 128 // (8 * 128)),
        ("two an SM: ring of 64 rows", 4 * 64 * 128 // (8 * 128)),
        ("three an SM: ring of 32 rows", 3 * 64 * 128 // (8 * 128)),
    ],
)
def test_weights_that_are_held_and_nothing_else_are_loaded_before_the_wait(kernels, name, num_loads):
    """Eight of them at a time by each of 128 threads. A load that the compiler moved behind the wait would be late, and
    a load of rows in front of it would find those of an earlier step.
    """
    assert kernels[name]["loads_before_wait"] == num_loads


def test_warps_wait_for_each_other_once_between_the_projection_and_attention(kernels):
    """For the queries, which a matrix instruction takes from shared memory. All that they are multiplied with before is
    in the threads that need it, and the newest key goes through no layout but its own.
    """
    rows = [row for name, row in kernels.items() if name.endswith("with the newest key")]
    assert [row["barriers_before_product"] for row in rows] == [1, 1]


def test_warps_that_merge_parts_wait_for_each_other_for_the_sum_of_weights_alone(kernels):
    """A thread has the same numbers of every part, so sums over parts are its own. What they are divided by goes to
    other threads once: two barriers, however many parts there are. One warp needs none, or one.
    """
    rows = [row for name, row in kernels.items() if name.startswith(("decode", "many requests", "leave parts"))]
    assert [row["barriers_of_merge"] for row in rows if row["num_warps"] > 1] == [2] * 11
    assert [row["barriers_of_merge"] for row in rows if row["num_warps"] == 1] == [0, 1]


def test_a_group_takes_the_place_of_a_part_that_no_warp_still_reads(kernels):
    """Two barriers are the sum's, where it has several warps, and one is for this."""
    rows = [row for name, row in kernels.items() if name.startswith(("decode", "many requests"))]
    assert len(rows) == 11
    for row in rows:
        assert row["barriers_before_overwriting"] > row["barriers_of_merge"] >= (2 if row["num_warps"] > 1 else 0), row


def test_attention_that_leaves_parts_waits_no_more_and_their_merge_hardly(kernels):
    """A merged row goes to the threads that multiply by it, and sums to those that store them: two barriers each, and
    one more where two warps share a row of weights. All weights are on their way before.
    """
    leaving, merging = (
        [row for name, row in kernels.items() if name.startswith(f"{what} parts")] for what in ("leave", "merge")
    )
    assert [row["barriers_before_product"] for row in leaving] == [1, 1]
    assert [row["barriers_behind_wait"] for row in merging] == [5, 8]
    assert [row["loads_before_wait"] for row in merging] == [8, 16]
    assert all(row["stack_bytes"] == 0 for row in (*leaving, *merging))


def test_a_short_prompt_has_its_first_pages_before_the_wait(kernels):
    """Starts and lengths of 256 requests, four numbers of one of them, and one block of pages."""
    rows = [row for name, row in kernels.items() if name.startswith("extend")]
    narrow = [row["name"].endswith("narrow") for row in rows]
    assert (len(rows), sum(narrow)) == (7, 3)
    expected = [2 * 256 // (32 * row["num_warps"]) + 4 + is_narrow for row, is_narrow in zip(rows, narrow, strict=True)]
    assert [row["loads_before_wait"] for row in rows] == expected


def test_rope_waits_for_the_projection_and_for_nothing_else(kernels):
    """Two numbers of the step, angles and weights, all of them loaded before. No warp needs what another one has."""
    rows = [row for name, row in kernels.items() if name.startswith("rope ")]
    assert [row["barriers_behind_wait"] for row in rows] == [0, 0, 0]
    assert min(row["loads_before_wait"] for row in rows) >= 4


def test_heads_of_few_and_of_many_tokens_are_normed_in_one_order(kernels):
    """Or a token's bits would depend on how many come with it."""
    names = [name for name in kernels if name.startswith("rope ")]
    for name in names:
        few, many = kernels[name], kernels[f"many tokens: {name}"]
        assert few["layouts_of_sums"] == many["layouts_of_sums"] != [], name
    assert len(names) == 3


def test_enough_threads_that_only_compare_fit_an_sm_to_keep_its_loads_in_flight(kernels):
    """16 bytes used and 16 on their way for each thread: 1,024 threads have the 26 KiB that hide memory's latency."""
    rows = [row for name, row in kernels.items() if name.startswith("choose greedy")]
    assert len(rows) == 2
    for row in rows:
        assert 1024 * row["registers"] <= SM_REGISTERS, row
        assert row["stack_bytes"] == 0, row


def test_every_thread_loads_one_of_the_keys_that_other_programs_raise(kernels):
    """Several threads of a program that load the same key may find different ones. A second load may as well. Then
    warps disagree about how often to loop, and wait for each other for ever.
    """
    rows = [row for name, row in kernels.items() if name.startswith("head") and "drawn" in name]
    assert len(rows) == 2
    for row in rows:
        assert row["volatile_loads"] == [32 * row["num_warps"]], row


def test_the_head_and_matmuls_in_order_take_as_many_inputs_at_a_time(kernels):
    """Matrix instructions of another depth would group a row's inputs otherwise, and give its sum other bits."""
    rows = [row for name, row in kernels.items() if name.startswith("head") or "matmul" in name]
    assert len(rows) == 14
    for row in rows:
        assert row["matrix_depths"] == [16], row


def test_rows_of_few_are_normed_by_twice_as_many_threads(kernels):
    few, many = (kernels[f"norm of {num_rows} rows in parts"] for num_rows in (128, 129))
    assert few["num_warps"] == 2 * many["num_warps"] == 16
    assert few["stack_bytes"] == many["stack_bytes"] == 0


def test_chunks_and_their_rounded_sum_are_normed_in_one_order(kernels):
    """A row whose numbers lay otherwise in the threads would be summed in another order."""
    whole, of_chunks = (kernels[f"in order: {name}"]["layouts_of_sums"] for name in ("norm", "norm of chunks"))
    assert len(whole) == 2
    assert of_chunks == whole
