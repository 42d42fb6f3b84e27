"""Linear maps over blocks of small integers give what plain numbers give; a row's bits depend on no other row."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from playhead.kernels.blocks import BLOCK_SIZE, block_matmul
from playhead.layers import blocks as blocks_module
from playhead.layers.blocks import MOST_TOKENS, BlockLinear, Blocks, BlockWeights
from playhead.models.checkpoint.gguf_blocks import SIMPLE_TYPES, unpack_blocks

NUM_OUTPUTS, NUM_INPUTS = 96, 128


def packed_matrix(type_name: str, seed: int = 0):
    """A random matrix as GGUF packs it: the bytes of its blocks, and the numbers they stand for."""
    kind = gguf.GGMLQuantizationType[type_name]
    numbers = np.random.default_rng(seed).normal(size=(NUM_OUTPUTS, NUM_INPUTS)).astype(np.float32)
    packed = gguf.quants.quantize(numbers, kind)
    return packed.reshape(NUM_OUTPUTS * NUM_INPUTS // BLOCK_SIZE, -1), gguf.quants.dequantize(packed, kind)


def blocks_of(type_name: str):
    packed, numbers = packed_matrix(type_name)
    codes, scales, offsets = map(torch.from_numpy, unpack_blocks(packed, type_name))
    blocks = Blocks(
        codes_OI=codes.reshape(NUM_OUTPUTS, NUM_INPUTS),
        scales_OB=scales.view(NUM_OUTPUTS, -1),
        offsets_OB=offsets.view(NUM_OUTPUTS, -1),
    )
    return blocks, torch.from_numpy(numbers)


def assert_near(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Sums of 128 products near 10, in another order."""
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-4)


@pytest.fixture(params=SIMPLE_TYPES)
def linear(request):
    """A map with its blocks, and its matrix."""
    blocks, numbers = blocks_of(request.param)
    made = BlockLinear(numbers.clone())
    made.keep(blocks)
    return made, numbers


@pytest.mark.parametrize("type_name", SIMPLE_TYPES)
def test_unpacked_blocks_are_the_numbers_that_gguf_unpacks(type_name):
    packed, numbers = packed_matrix(type_name)
    codes, scales, offsets = unpack_blocks(packed, type_name)
    found = codes.astype(np.float32) * scales[:, None] + offsets[:, None]
    np.testing.assert_allclose(found.reshape(numbers.shape), numbers, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("type_name", SIMPLE_TYPES)
def test_blocks_write_the_very_numbers_that_gguf_unpacks(type_name):
    """A map with blocks has its plain matrix from them, and another map of the same file has it from the package."""
    blocks, numbers = blocks_of(type_name)
    found = torch.full_like(numbers, torch.nan)
    blocks.write_to(found)
    assert torch.equal(found, numbers)


def test_a_product_with_blocks_is_the_product_with_their_numbers(linear):
    made, numbers = linear
    made.weight.data.fill_(torch.nan)  # whoever reads the plain matrix shows it
    x = torch.randn(2, NUM_INPUTS, generator=torch.Generator().manual_seed(1))
    assert_near(made(x), x @ numbers.T)
    out = torch.full((2, NUM_OUTPUTS), torch.nan)
    assert made(x, out) is out
    assert_near(out, x @ numbers.T)
    total = torch.ones(2, NUM_OUTPUTS)
    assert made.add_to(total, x) is total
    assert_near(total, 1 + x @ numbers.T)


def test_a_row_has_the_same_bits_alone_and_among_others(linear):
    made, _ = linear
    x = torch.randn(MOST_TOKENS, NUM_INPUTS, generator=torch.Generator().manual_seed(2))
    together = made(x)
    for row in range(MOST_TOKENS):
        assert torch.equal(made(x[row : row + 1])[0], together[row])


def test_steps_of_many_tokens_read_the_plain_matrix(linear):
    made, _ = linear
    x = torch.randn(MOST_TOKENS + 1, NUM_INPUTS, generator=torch.Generator().manual_seed(3))
    made.weight.data.zero_()
    assert not made(x).any()
    assert made(x[:1]).any()


def test_the_compiled_product_is_the_reference_product(linear):
    made, _ = linear
    x = torch.randn(MOST_TOKENS, NUM_INPUTS, generator=torch.Generator().manual_seed(4))
    for adds in (False, True):
        found, wanted = torch.ones(MOST_TOKENS, NUM_OUTPUTS), torch.ones(MOST_TOKENS, NUM_OUTPUTS)
        block_matmul(found, x, made.codes_NBJL, made.scales_NBL, made.offsets_NBL, adds)
        block_matmul.reference(wanted, x, made.codes_NBJL, made.scales_NBL, made.offsets_NBL, adds)
        assert_near(found, wanted)


def test_blocks_are_kept_in_float32_on_a_cpu_with_numba_alone(monkeypatch):
    def keeps(dtype: torch.dtype, device: str) -> bool:
        return BlockWeights(dtype=dtype, device=torch.device(device)).keeps_blocks

    assert keeps(torch.float32, "cpu")
    assert not keeps(torch.bfloat16, "cpu")
    assert not keeps(torch.float32, "meta")
    monkeypatch.setattr(blocks_module, "find_spec", lambda name: None)
    assert not keeps(torch.float32, "cpu")


@pytest.mark.parametrize(("num_outputs", "num_inputs"), [(40, 128), (64, 16)])
def test_a_matrix_without_whole_groups_or_blocks_is_left_plain(num_outputs, num_inputs):
    codes = torch.zeros((num_outputs, num_inputs), dtype=torch.int8)
    scales = torch.ones((num_outputs, max(1, num_inputs // BLOCK_SIZE)))
    assert not Blocks(codes_OI=codes, scales_OB=scales, offsets_OB=scales).can_be_packed
