"""The kernel whose weights come through a ring: interpreted, against its reference; and which products take it."""

from __future__ import annotations

import pytest
import torch

from playhead.kernels.projection import project_gated
from playhead.kernels.triton import projection, projection_tiles, ring
from playhead.kernels.triton.projection_tiles import (
    RING_INPUTS,
    RING_ROWS,
    RingTiles,
    StreamedTiles,
    gated_tiles,
    ring_tiles,
)
from playhead.testing import gluon_interpreter
from playhead.testing.gluon_interpreter import Interpreted, Program, Shared, SharedMemoryError
from playhead.testing.ring_mutants import RING_CHECKERS

MODELS = {
    "Gemma-3-1B": (13824, 1152, 2),
    "Gemma-3-4B": (20480, 2560, 3),
    "Llama-3.2-1B": (16384, 2048, 2),
    "Qwen3-0.6B": (6144, 1024, 1),
}
SM_SHARED_BYTES, BLOCK_RESERVED_BYTES = 228 * 1024, 1024
ROWS = (1, 2, 5, 8, 9, 16, 17, 32, 33, 64)


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch):
    monkeypatch.setattr(projection, "ring_kernel", Interpreted(kernel=ring.ring_kernel))


def meta(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="meta")


def call(num_rows, num_blocks, num_programs=2):
    """Rows of a wider tensor and a matrix."""
    numbers = torch.Generator().manual_seed(num_rows)
    num_inputs = num_blocks * RING_INPUTS
    x = torch.randn(num_rows, num_inputs + 16, generator=numbers)[:, :num_inputs]
    return x, 0.05 * torch.randn(num_programs * RING_ROWS, num_inputs, generator=numbers)


def product(tiles, x, weight, activation="silu"):
    out = torch.full((len(x), len(weight) // 2), float("nan"))
    projection.launch_tiles(tiles, out, x, weight, None, activation=activation)
    return out


CUTS = {(rows, *model[:2]): ring_tiles(rows, *model[:2]) for rows in ROWS for model in MODELS.values()}
TAKEN = [(tiles, rows) for (rows, *_), tiles in CUTS.items() if tiles is not None]
DIFFERENT = list(dict.fromkeys([*dict(TAKEN).items(), *dict(reversed(TAKEN)).items()]))
"""All tiles that the rules choose, with the most rows and with the fewest."""


@pytest.mark.parametrize(("tiles", "num_rows"), DIFFERENT, ids=str)
@pytest.mark.parametrize("more_blocks", [0, 1, 5])
def test_the_ring_agrees_with_reference(tiles, num_rows, more_blocks):
    x, weight = call(num_rows, tiles.places + tiles.holds + more_blocks)
    torch.testing.assert_close(product(tiles, x, weight), project_gated.reference(x, weight, None, "silu"))


def test_other_activations_gate_too():
    x, weight = call(3, 6)
    tiles = RingTiles(block_r=8, places=4, row_places=3, asked=64, holds=False)
    wanted = project_gated.reference(x, weight, None, "gelu_tanh")
    torch.testing.assert_close(product(tiles, x, weight, "gelu_tanh"), wanted)


def test_a_row_does_not_see_the_rows_beside_it():
    x, weight = call(8, 8)
    tiles = RingTiles(block_r=8, places=5, row_places=4, asked=32, holds=True)
    alone = product(tiles, torch.cat([x[:1], torch.full_like(x[1:], float("inf"))]), weight)
    assert torch.equal(alone[0], product(tiles, x, weight)[0])


@pytest.mark.parametrize("asked", [16, 32, 64])
def test_two_copies_of_weights_are_on_their_way_before_the_wait(monkeypatch, asked):
    """Attention's loads stand behind them."""
    outstanding, copy = [], Program.copy

    def counted(self, place, source, mask=None):
        copy(self, place, source, mask)
        if mask is None:  # weights
            outstanding.append(sum(place.values.size for group in self.groups for place, _ in group))

    monkeypatch.setattr(gluon_interpreter.Program, "copy", counted)
    x, weight = call(8, 4, num_programs=1)
    product(RingTiles(block_r=8, places=4, row_places=4, asked=asked, holds=False), x, weight)
    assert max(outstanding) == 2 * asked * RING_INPUTS


@pytest.mark.parametrize("model", MODELS)
def test_all_programs_of_a_launch_have_room_at_once(model):
    num_outputs, num_inputs, per_sm = MODELS[model]
    found = [CUTS[rows, num_outputs, num_inputs] for rows in ROWS]
    assert any(found)
    for tiles in filter(None, found):
        numbers = tiles.places * RING_ROWS + tiles.row_places * tiles.block_r
        assert per_sm * (2 * numbers * RING_INPUTS + BLOCK_RESERVED_BYTES) <= SM_SHARED_BYTES, tiles


def test_products_of_the_models_take_the_ring_where_it_was_faster():
    taken = {name: [rows for rows in ROWS if CUTS[rows, *shape[:2]] is not None] for name, shape in MODELS.items()}
    assert taken == {
        "Gemma-3-1B": list(ROWS),
        "Gemma-3-4B": [rows for rows in ROWS if 1 < rows <= 32],
        "Llama-3.2-1B": list(ROWS),
        "Qwen3-0.6B": list(ROWS[1:]),
    }


@pytest.mark.parametrize(
    ("num_rows", "num_outputs", "num_inputs"),
    [(65, 13824, 1152), (8, 1536, 1152), (8, 13824, 1184), (8, 13824 + 32, 1152), (8, 13824, 768), (8, 40960, 5120)],
    ids=["many rows", "few outputs", "half a block", "half a program", "fewer inputs than places", "four an SM"],
)
def test_other_products_take_no_ring(num_rows, num_outputs, num_inputs):
    assert ring_tiles(num_rows, num_outputs, num_inputs) is None


@pytest.mark.parametrize(("width", "start", "takes"), [(1152 + 16, 0, True), (1152 + 8, 0, False), (2304, 4, False)])
def test_rows_that_do_not_start_at_whole_copies_take_no_ring(width, start, takes):
    """Triton refuses to compile copies of less than four bytes."""
    x = meta(8, width)[:, start : start + 1152]
    assert isinstance(gated_tiles(x, meta(13824, 1152), None), RingTiles) is takes


@pytest.mark.parametrize("start", [0, 4])
def test_a_matrix_that_does_not_start_at_a_whole_copy_takes_no_ring(start):
    weight = meta(13824 * 1152 + 8)[start : start + 13824 * 1152].view(13824, 1152)
    assert isinstance(gated_tiles(meta(8, 1152), weight, None), RingTiles) is (start == 0)


def test_a_bias_another_type_and_another_device_take_no_ring(monkeypatch):
    x, weight = meta(8, 1152), meta(13824, 1152)
    assert isinstance(gated_tiles(x, weight, None), RingTiles)
    assert isinstance(gated_tiles(x, weight, meta(13824)), StreamedTiles)
    assert gated_tiles(meta(8, 1152, dtype=torch.float32), meta(13824, 1152, dtype=torch.float32), None) is None
    assert not projection_tiles.can_ring(torch.device("cpu"))
    monkeypatch.setattr(projection_tiles, "can_ring", lambda device: False)
    assert isinstance(gated_tiles(x, weight, None), StreamedTiles)


@pytest.mark.parametrize("major", [8, 9, 10])
def test_the_ring_is_for_hopper(monkeypatch, major):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (major, 0))
    assert projection_tiles.can_ring.__wrapped__(torch.device("cuda", 0)) is (major == 9)


def test_a_ring_gates_and_no_more():
    x, weight = call(3, 6)
    tiles = RingTiles(block_r=8, places=4, row_places=3, asked=64, holds=False)
    for bias, activation in ((torch.zeros(128), "silu"), (None, None)):
        with pytest.raises(AssertionError, match="they gate, and no more"):
            projection.launch_tiles(tiles, torch.empty(3, 64), x, weight, bias, activation=activation)


def test_the_checker_is_silent_on_the_kernel_as_it_is():
    assert RING_CHECKERS[0].run() == []


@pytest.mark.parametrize("places", [2, 3])
def test_a_ring_asks_for_no_more_blocks_than_there_are(places):
    """More places than blocks, or no block left to hold: a copy would read behind the matrix."""
    x, weight = call(3, 2, num_programs=1)
    tiles = RingTiles(block_r=8, places=places, row_places=2, asked=64, holds=True)
    with pytest.raises(AssertionError, match="no more blocks"):
        product(tiles, x, weight)


@pytest.mark.parametrize("start", [-1, 3])
def test_numbers_beside_a_tensor_are_noticed(start):
    numbers = gluon_interpreter.Pointer.to(torch.arange(4.0)) + torch.arange(start, start + 2).numpy()
    with pytest.raises(IndexError, match="the memory has"):
        numbers.load()
    with pytest.raises(IndexError, match="the memory has"):
        numbers.store(0.0)
    assert numbers.load(mask=False).sum() == 0


def place():
    """A place that a copy was asked for."""
    program = Program(ids=(0,))
    shared = program.allocate(None, (4,), None)
    numbers = gluon_interpreter.Pointer.to(torch.arange(4.0))
    program.copy(shared, numbers + torch.arange(4).numpy())
    program.commit()
    return program, shared


def test_a_copy_lands_when_it_is_waited_for():
    program, shared = place()
    assert shared.values.sum() != 6
    program.wait(1)
    assert shared.values.sum() != 6
    program.wait(0)
    assert shared.values.sum() == 6


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([], "on its way"),
        (["wait"], "landed"),
        (["wait", "barrier"], "landed"),
        (["wait", "fence"], "fenced"),
        (["fence", "barrier", "wait"], "landed"),
    ],
    ids=str,
)
def test_a_place_is_read_behind_its_wait_its_fence_and_a_barrier(steps, said):
    program, shared = place()
    for step in steps:
        program.wait(0) if step == "wait" else getattr(program, step)()
    with pytest.raises(SharedMemoryError, match=said):
        shared.read()
    program.wait(0)
    program.fence()
    program.barrier()
    assert shared.read().sum() == 6


def test_a_place_is_written_once_at_a_time():
    program, shared = place()
    with pytest.raises(SharedMemoryError, match="on its way"):
        shared.store(torch.zeros(4).numpy())
    program.wait(0)
    shared.store(torch.zeros(4).numpy())


def test_no_fewer_than_no_copies_are_on_their_way():
    with pytest.raises(ValueError, match="cannot be on their way"):
        Program(ids=(0,)).wait(-1)


@pytest.mark.parametrize(("places", "row_places"), [(2, 1), (2, 3)])
def test_other_rings_are_refused(places, row_places):
    x, weight = call(3, 6)
    with pytest.raises(AssertionError):
        product(RingTiles(block_r=8, places=places, row_places=row_places, asked=64, holds=False), x, weight)


def test_a_place_that_was_read_is_written_behind_a_barrier():
    shared = Shared.of((4,))
    shared.stages[...] = gluon_interpreter.Stage.VISIBLE
    shared.read()
    with pytest.raises(SharedMemoryError, match="still multiply"):
        shared.begin_write()
