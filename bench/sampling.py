"""From logits to tokens on one GPU: `PYTHONPATH=src python3 -m bench.sampling`.

`choose_tokens` beside torch: its argmax, and the noise as tensors; draws behind filters beside the sorted reference.
Everything runs from CUDA graphs over logits that do not fit the cache together, except the slow ways of torch, which
have two copies and may find them there. GB/s are the bytes of the logits, read once, over the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import torch

from bench.measure import cold_copies, device_us, emit
from playhead.kernels.filters import least_keys
from playhead.kernels.tokens import choose_scratch, choose_tokens

DEVICE = torch.device("cuda")
GREEDY_BELOW = 1e-5
BATCHES = (1, 8, 32, 128)
VOCABS = (262_144, 128_256)
SLOW = ("torch draw", "sorted k 40, p 0.9")


def time_us(work: Callable[[torch.Tensor], object], copies: list[torch.Tensor]) -> float:
    """Device microseconds of one call, from a graph that goes round the copies."""
    work(copies[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        for logits in copies:
            work(logits)
    return device_us(graph.replay, DEVICE, calls=2, rounds=5) / len(copies)


def ways(num_rows: int, vocab_size: int) -> dict[str, Callable[[torch.Tensor], object]]:
    """What turns logits into tokens, by name. The torch noise path takes what `choose_tokens` takes."""
    cool = torch.zeros(num_rows, device=DEVICE)
    warm = torch.full((num_rows,), 0.8, device=DEVICE)
    seeds = torch.arange(num_rows, device=DEVICE)
    tokens = torch.zeros_like(seeds)
    scratch = choose_scratch(num_rows, vocab_size, DEVICE)

    def call(op: Callable[..., None], temperature: torch.Tensor, draws: bool) -> Callable[[torch.Tensor], None]:
        return lambda logits: op(logits, None, temperature, seeds, seeds, tokens, *scratch, GREEDY_BELOW, draws)

    def behind(op: Callable[..., torch.Tensor], top_k: int, top_p: float) -> Callable[[torch.Tensor], None]:
        numbers = (warm, torch.full_like(seeds, top_k), torch.full_like(warm, top_p), torch.full_like(warm, -math.inf))

        def filter_and_draw(logits: torch.Tensor) -> None:
            least = op(logits, *numbers, GREEDY_BELOW)
            choose_tokens(logits, least, warm, seeds, seeds, tokens, *scratch, GREEDY_BELOW, True)

        return filter_and_draw

    return {
        "greedy": call(choose_tokens, cool, False),
        "greedy, could draw": call(choose_tokens, cool, True),
        "draw": call(choose_tokens, warm, True),
        "k 40, p 0.9": behind(least_keys, 40, 0.9),
        "p 0.9": behind(least_keys, 0, 0.9),
        "sorted k 40, p 0.9": behind(least_keys.reference, 40, 0.9),
        "torch argmax": lambda logits: logits.argmax(-1),
        "torch float, argmax": lambda logits: logits.float().argmax(-1),
        "torch draw": call(choose_tokens.reference, warm, True),
    }


def bench(num_rows: int, vocab_size: int, dtype: torch.dtype) -> list[tuple[str, float, float]]:
    """(name, microseconds, GB/s) of each way."""
    num_bytes = num_rows * vocab_size * dtype.itemsize
    shape = (cold_copies(num_bytes), num_rows, vocab_size)
    copies = list(torch.empty(shape, dtype=dtype, device=DEVICE).normal_(std=4.0))
    rows = []
    for name, work in ways(num_rows, vocab_size).items():
        us = time_us(work, copies[: 2 if name in SLOW else None])
        emit("sampling", way=name, rows=num_rows, vocab=vocab_size, dtype=str(dtype), us=us)
        rows.append((name, us, num_bytes / us / 1e3))
    return rows


def main() -> None:
    if not torch.cuda.is_available():
        raise SystemExit("bench.sampling: found no CUDA device; wanted one. Run it on a GPU machine")
    torch.manual_seed(0)
    lines = []
    for dtype, vocab_size, num_rows in product((torch.bfloat16, torch.float32), VOCABS, BATCHES):
        found = bench(num_rows, vocab_size, dtype)
        figures = "  ".join(f"{name} {us:.1f} us {rate:.0f}" for name, us, rate in found)
        lines.append(f"{str(dtype)[6:]:<8} {num_rows:>3} x {vocab_size}: {figures}")
    print("\nus of one call, GB/s")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
