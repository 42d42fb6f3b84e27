"""What a decode step does with tokens: it reads the newest ones, chooses the next, and makes them its next inputs.

A token is chosen in one pass over the vocabulary: the largest logit, or the largest with Gumbel noise. The noise is a
hash of (seed, tokens generated so far, token id), so a request draws the same tokens alone, in any batch, in any row,
padded, captured or eager. The step leaves its inputs as those of the next step, so that the host need not send them,
and its tokens where the host finds them.

Shapes: B requests, T tokens, N rows of logits, V vocabulary, R rows of running requests or of the scratch, P pages per
row, X parts of a row or boxes. A trailing 1 is kept for broadcasting.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from playhead.kernels.filters import reach
from playhead.kernels.op import like_first, op

# splitmix64, as signed 64-bit numbers: integer multiplication of tensors wraps, as the hash wants.
GOLDEN = 0x9E3779B97F4A7C15 - 2**64
MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
MIX_2 = 0x94D049BB133111EB - 2**64
UNIFORM_BITS = 40
NO_KEY = -(2**63)  # below the key of every score
BELOW_ONE = 1 - 2**-24

IDS_PER_BLOCK = 1024  # eight for each of 128 threads: one 16-byte load of bf16
NUM_PROGRAMS = 132 * 24  # two waves on an H200: even shares, and few parts to merge


@op(
    out=like_first,
    bind="cpu.tokens:bind_newest_ids",
    cuda="triton.advance:launch_newest_ids",
)
def newest_ids(ids_T: Tensor, newest_R: Tensor) -> Tensor:
    """Token ids as they are; where -row stands, the newest token of that row, which the host has not read yet.

    With newest tokens (-, 7, 9), the ids (4, -2, 0) are (4, 9, 0).
    """
    return torch.where(ids_T < 0, newest_R[(-ids_T).clamp_min(0)], ids_T)


@op(
    mutates=("tokens_N", "parts_RX", "arrivals_R"),
    bind="cpu.tokens:bind_choose_tokens",
    cuda="triton.choose:launch_choose_tokens",
)
def choose_tokens(
    logits_NV: Tensor, least_keys_N: Tensor | None, temperature_N: Tensor, seeds_N: Tensor, positions_N: Tensor,
    tokens_N: Tensor, parts_RX: Tensor, arrivals_R: Tensor, greedy_below: float, draws: bool,
) -> None:  # fmt: skip
    """Writes `tokens_N`: where the temperature is `greedy_below` or more, the largest logit / temperature + noise.

    The other rows, and all rows if nothing `draws`, get their largest logit. Tokens below their row's least key count
    as -inf. Equal scores go to the lowest id; NaN counts as -inf, so a row of NaN gets id 0. `choose_scratch` makes
    the scratch, which decides nothing; the kernel leaves `arrivals_R` zeroed.
    """
    scores_NV = logits_NV.float()
    if least_keys_N is not None:
        scores_NV = torch.where(reach(scores_NV, least_keys_N), scores_NV, -math.inf)
    if draws:
        greedy_N1 = temperature_N[:, None] < greedy_below
        drawn_NV = scores_NV / torch.where(greedy_N1, 1.0, temperature_N[:, None])
        drawn_NV += gumbel_noise(seeds_N, positions_N, logits_NV.shape[1])
        scores_NV = torch.where(greedy_N1, scores_NV, drawn_NV)
    torch.argmax(scores_NV.nan_to_num(-math.inf, math.inf, -math.inf), dim=-1, out=tokens_N)


def gumbel_noise(seeds_N: Tensor, positions_N: Tensor, vocab_size: int, first_id: int = 0) -> Tensor:
    """Standard Gumbel numbers, float32, a function of seed, position and token id alone, always finite.

    Each row is the splitmix64 stream that starts at the hash of its seed and position. The rare large numbers decide
    a draw over a large vocabulary, so the uniform number is small where they are, with 40 bits.
    """
    start_N = mixed_(mixed_(seeds_N + GOLDEN) + positions_N * GOLDEN)
    ids_V = torch.arange(first_id, first_id + vocab_size, dtype=torch.int64, device=seeds_N.device)
    bits_NV = mixed_(start_N[:, None] + ids_V * GOLDEN)
    high_NV = shifted(bits_NV, 64 - UNIFORM_BITS)
    uniform_NV = ((high_NV.float() + 0.5) * 2.0**-UNIFORM_BITS).clamp_(max=BELOW_ONE)
    return uniform_NV.neg_().log1p_().neg_().log_().neg_()


def mixed_(bits: Tensor) -> Tensor:
    """splitmix64's mixing, in place: every bit of a 64-bit number reaches every bit of the result."""
    bits.bitwise_xor_(shifted(bits, 30)).mul_(MIX_1)
    bits.bitwise_xor_(shifted(bits, 27)).mul_(MIX_2)
    return bits.bitwise_xor_(shifted(bits, 31))


def shifted(bits: Tensor, num_bits: int) -> Tensor:
    """Shift right and fill with zeros; `>>` alone copies the sign."""
    return (bits >> num_bits).bitwise_and_(2 ** (64 - num_bits) - 1)


def choose_scratch(max_rows: int, vocab_size: int, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
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


@op(
    mutates=(
        *("input_ids_B", "positions_B", "seq_lens_B", "out_cache_loc_B", "num_generated_B", "boxes_B"),
        *("newest_R", "outbox_XB"),
    ),
    bind="cpu.tokens:bind_advance",
    cuda="triton.advance:launch_advance",
)
def advance(
    tokens_B: Tensor, input_ids_B: Tensor, positions_B: Tensor, seq_lens_B: Tensor, out_cache_loc_B: Tensor,
    num_generated_B: Tensor, boxes_B: Tensor, rows_B: Tensor, num_live: Tensor, newest_R: Tensor, outbox_XB: Tensor,
    page_table_RP: Tensor, page_size: int,
) -> None:  # fmt: skip
    """Every live request one token further: fed back, one longer, with its next place from the page table.

    The table must have the page of that place by now, or the host must fill the inputs of the next step. `num_live`
    is one number; the rows after it are null requests and stay what they are.

    The token also goes to the request's box of the outbox, where the host finds it. The next one goes to the next box,
    and after the last one to box 1: box 0 is the sink, which nobody reads and nobody leaves.
    """
    live_B = torch.arange(len(rows_B), dtype=torch.int32, device=rows_B.device) < num_live
    rows_B = torch.where(live_B, rows_B, 0).long()
    newest_R[rows_B] = tokens_B.to(newest_R.dtype)
    place_1B, num_boxes = boxes_B[None].long(), outbox_XB.shape[0] - 1
    kept_1B = outbox_XB[:, : len(rows_B)].gather(0, place_1B)
    outbox_XB[:, : len(rows_B)].scatter_(0, place_1B, torch.where(live_B, tokens_B.to(outbox_XB.dtype), kept_1B))
    boxes_B.copy_(torch.where(live_B & (boxes_B > 0), boxes_B % num_boxes + 1, boxes_B))
    input_ids_B.copy_(torch.where(live_B, tokens_B, input_ids_B))
    # A request at the end of its context has no next place and is not run again; it stays where its row ends.
    max_tokens = page_table_RP.shape[1] * page_size
    positions_B.add_(live_B).clamp_max_(max_tokens - 1)
    seq_lens_B.add_(live_B).clamp_max_(max_tokens)
    num_generated_B.add_(live_B)
    next_loc_B = page_table_RP[rows_B, positions_B // page_size] * page_size + positions_B % page_size
    out_cache_loc_B.copy_(torch.where(live_B, next_loc_B, out_cache_loc_B))
