"""How programs of decode's attention are cut: rules from measurements. No Triton: whoever plans a step may ask."""

from __future__ import annotations

from dataclasses import dataclass

from playhead.kernels.sizes import next_power_of_2
from playhead.kernels.splits import (
    LEAST_FILL,
    MANY_KV_HEADS,
    MANY_PROGRAMS,
    NARROW_HEAD,
    NUM_SMS,
    PROGRAMS_PER_SM,
    WIDE_HEAD,
)

MIN_DOT_ROWS = 16  # what a tensor core instruction takes at least
MAX_ROWS = 64  # more query heads per kv head than this take more programs, which read the keys again
SM_REGISTERS = 65536
MAX_REGISTERS = 255  # that a thread can name


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeTiles:
    """How a decode program is cut. `block_j` keys are loaded at a time, `num_stages` blocks of them in flight.

    `programs_per_sm` of them share the registers of a multiprocessor.
    """

    block_j: int
    num_warps: int
    num_stages: int
    programs_per_sm: int = PROGRAMS_PER_SM

    @property
    def max_registers(self) -> int:
        """Of a thread. They come in eights: 168 for three programs of 128 threads."""
        each = SM_REGISTERS // (self.programs_per_sm * 32 * self.num_warps)
        return min(each // 8 * 8, MAX_REGISTERS)


def decode_tiles(
    k_head_dim: int, v_head_dim: int, *, num_programs: int = 1, num_splits: int = 0, num_rows: int = MIN_DOT_ROWS
) -> DecodeTiles:
    """About 32 KiB of bf16 keys and values per block, whatever the head dim; for a program that reads all keys of a
    wide head itself, twice as much.

    Wide heads take so long over a block that one block ahead is enough: Gemma-3-1B is 1 to 8% faster at all lengths.
    Where a step has many programs for each split (`num_programs`), more of them run at once if each has two warps, or
    one if its heads are narrow and it has few rows (`num_rows`, padded).
    """
    width = next_power_of_2(max(k_head_dim, v_head_dim))
    block_j, is_wide = min(max(8192 // width, 16), 128), width >= WIDE_HEAD
    if width <= NARROW_HEAD and num_programs > MANY_PROGRAMS and num_rows == MIN_DOT_ROWS:
        return DecodeTiles(block_j=32, num_warps=1, num_stages=3, programs_per_sm=9)
    if not is_wide and num_programs > MANY_PROGRAMS:
        return DecodeTiles(block_j=max(block_j // 2, 16), num_warps=2, num_stages=3, programs_per_sm=6)
    if width == WIDE_HEAD and num_programs > LEAST_FILL * 4 * NUM_SMS:
        return DecodeTiles(block_j=block_j, num_warps=2, num_stages=2, programs_per_sm=4)
    if is_wide and num_splits == 1 and num_programs > MANY_KV_HEADS:
        in_one_wave = num_programs <= NUM_SMS
        return DecodeTiles(
            block_j=2 * block_j,
            num_warps=8,
            num_stages=3 if in_one_wave else 2,
            programs_per_sm=1 if in_one_wave else 2,
        )
    return DecodeTiles(block_j=block_j, num_warps=4, num_stages=2 if is_wide else 3)


def rows_of_dot(group: int) -> int:
    """Rows of a tile for the query heads of one kv head."""
    return min(max(next_power_of_2(group), MIN_DOT_ROWS), MAX_ROWS)
