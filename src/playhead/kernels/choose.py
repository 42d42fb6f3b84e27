"""One token per row of logits: the largest one, or the largest with Gumbel noise, in one pass over the vocabulary.

The noise is a hash of (seed, tokens generated so far, token id), so a request draws the same tokens alone, in any
batch, in any row, padded, captured or eager.

Shapes: N rows, V vocabulary, R rows of the scratch, X parts of a row. A trailing 1 is kept for broadcasting.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import torch

from playhead.bound_ops import Work
from playhead.kernels.op import register_bound_op

# splitmix64, as signed 64-bit numbers: integer multiplication of tensors wraps, as the hash wants.
GOLDEN = 0x9E3779B97F4A7C15 - 2**64
MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
MIX_2 = 0x94D049BB133111EB - 2**64
UNIFORM_BITS = 40
BELOW_ONE = 1 - 2**-24

IDS_PER_BLOCK = 1024  # eight for each of 128 threads: one 16-byte load of bf16
NUM_PROGRAMS = 132 * 24  # two waves on an H200: even shares, and few parts to merge


def gumbel_noise(seeds_N: torch.Tensor, positions_N: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Standard Gumbel numbers, float32, a function of seed, position and token id alone, always finite.

    Each row is the splitmix64 stream that starts at the hash of its seed and position. The rare large numbers decide
    a draw over a large vocabulary, so the uniform number is small where they are, with 40 bits.
    """
    start_N = mixed_(mixed_(seeds_N + GOLDEN) + positions_N * GOLDEN)
    ids_V = torch.arange(vocab_size, dtype=torch.int64, device=seeds_N.device)
    bits_NV = mixed_(start_N[:, None] + ids_V * GOLDEN)
    high_NV = shifted(bits_NV, 64 - UNIFORM_BITS)
    uniform_NV = ((high_NV.float() + 0.5) * 2.0**-UNIFORM_BITS).clamp_(max=BELOW_ONE)
    return uniform_NV.neg_().log1p_().neg_().log_().neg_()


def mixed_(bits: torch.Tensor) -> torch.Tensor:
    """splitmix64's mixing, in place: every bit of a 64-bit number reaches every bit of the result."""
    bits.bitwise_xor_(shifted(bits, 30)).mul_(MIX_1)
    bits.bitwise_xor_(shifted(bits, 27)).mul_(MIX_2)
    return bits.bitwise_xor_(shifted(bits, 31))


def shifted(bits: torch.Tensor, num_bits: int) -> torch.Tensor:
    """Shift right and fill with zeros; `>>` alone copies the sign."""
    return (bits >> num_bits).bitwise_and_(2 ** (64 - num_bits) - 1)


def choose_tokens_reference(
    logits_NV: torch.Tensor,
    temperature_N: torch.Tensor,
    seeds_N: torch.Tensor,
    positions_N: torch.Tensor,
    tokens_N: torch.Tensor,
    parts_RX: torch.Tensor,
    arrivals_R: torch.Tensor,
    greedy_below: float,
    draws: bool,
) -> None:
    """Writes `tokens_N`: where the temperature is `greedy_below` or more, the largest logit / temperature + noise.

    The other rows, and all rows if nothing `draws`, get their largest logit. Equal scores go to the lowest id; NaN
    counts as -inf, so a row of NaN gets id 0. `choose_scratch` makes the scratch, which decides nothing; the kernel
    leaves `arrivals_R` zeroed.
    """
    scores_NV = logits_NV.float()
    if draws:
        greedy_N1 = temperature_N[:, None] < greedy_below
        drawn_NV = scores_NV / torch.where(greedy_N1, 1.0, temperature_N[:, None])
        drawn_NV += gumbel_noise(seeds_N, positions_N, logits_NV.shape[1])
        scores_NV = torch.where(greedy_N1, scores_NV, drawn_NV)
    torch.argmax(scores_NV.nan_to_num(-math.inf, math.inf, -math.inf), dim=-1, out=tokens_N)


def bind_choose_tokens(
    logits_NV: torch.Tensor,
    temperature_N: torch.Tensor,
    seeds_N: torch.Tensor,
    positions_N: torch.Tensor,
    tokens_N: torch.Tensor,
    parts_RX: torch.Tensor,
    arrivals_R: torch.Tensor,
    greedy_below: float,
    draws: bool,
) -> Work:
    """The reference; where nothing draws, numpy's argmax, at a twentieth of torch's time."""
    drawing = (temperature_N, seeds_N, positions_N, tokens_N, parts_RX, arrivals_R, greedy_below, draws)
    by_torch = partial(choose_tokens_reference, logits_NV, *drawing)
    if draws or logits_NV.dtype != torch.float32:
        return by_torch
    logits, tokens, row = logits_NV.numpy(), tokens_N.numpy(), np.arange(len(logits_NV))

    def work() -> None:
        logits.argmax(axis=1, out=tokens)
        # numpy takes the first NaN for the largest number, so a row has none if the chosen one is a number.
        if np.isnan(logits[row, tokens]).any():
            by_torch()

    return work


def choose_scratch(
    max_rows: int, vocab_size: int, device: torch.device | str = "cpu"
) -> tuple[torch.Tensor, torch.Tensor]:
    """`parts_RX` and `arrivals_R` for steps of up to `max_rows` rows: 8 bytes for each block, 256 KiB for 128 rows.

    Steps may share them as long as they run one after the other.
    """
    parts_RX = torch.zeros((max_rows, -(-vocab_size // IDS_PER_BLOCK)), dtype=torch.int64, device=device)
    return parts_RX, torch.zeros(max_rows, dtype=torch.int32, device=device)


def blocks_per_part(num_rows: int, vocab_size: int) -> int:
    """How many blocks of ids a program looks at: as few as leave no more programs than the device can hold twice.

    262,144 ids are 256 blocks: one row takes 256 programs, 128 rows take 24 programs each, of eleven blocks.
    """
    parts = max(NUM_PROGRAMS // num_rows, 1)
    return -(-vocab_size // (parts * IDS_PER_BLOCK))


def _cuda(*args: object) -> None:
    from playhead.kernels.triton.choose import launch_choose_tokens

    launch_choose_tokens(*args)  # type: ignore[arg-type]


choose_tokens = register_bound_op(
    "choose_tokens",
    reference=choose_tokens_reference,
    bind=bind_choose_tokens,
    cuda=_cuda,
    mutates=("tokens_N", "parts_RX", "arrivals_R"),
)
