"""What ranks cost a GPU before there are several: decode steps of one rank that meets itself over NCCL, and of none.

    python -m bench.tensor_parallel_gpu bench/models/gemma3-1b 1 32

Both engines decode the same requests in turn; a round's figure is (time with all tokens - time with one) / the rest.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence

import torch

from playhead.engine.config import EngineConfig
from playhead.engine.engine import Engine
from playhead.sampling_params import SamplingParams
from playhead.testing.lone_rank import group_of_one, lone_engine
from playhead.types import LoadFormat, TPMode

PROMPT_TOKENS = 128
NEW_TOKENS = 129
ROUNDS = 5


def generate(engine: Engine, batch: int, num_tokens: int, temperature: float) -> list[list[int]]:
    """Tokens of so many requests."""
    vocab_size = engine.worker.model.decoder.spec.vocab_size
    for i in range(batch):
        prompt = [(37 * i + 11 * j) % vocab_size for j in range(PROMPT_TOKENS)]
        params = SamplingParams(temperature=temperature, seed=i, max_tokens=num_tokens, ignore_eos=True)
        engine.add_request(f"{i}", prompt, params)
    tokens: dict[str, list[int]] = {}
    while engine.has_work:
        tokens |= {out.request_id: list(out.outputs[0].token_ids) for out in engine.step() if out.finished}
    return [tokens[f"{i}"] for i in range(batch)]


def step_ms(engine: Engine, batch: int) -> float:
    """Milliseconds of one decode step."""

    def seconds(num_tokens: int) -> float:
        torch.cuda.synchronize()
        started = time.perf_counter()
        generate(engine, batch, num_tokens, 0.0)
        torch.cuda.synchronize()
        return time.perf_counter() - started

    return 1000 * (seconds(NEW_TOKENS) - seconds(1)) / (NEW_TOKENS - 1)


def main(model: str, batches: Sequence[int]) -> None:
    """Print whether tokens are equal, and what a step takes."""
    config = EngineConfig(
        device="cuda",
        load_format=LoadFormat.DUMMY,
        max_model_len=512,
        max_num_seqs=32,
        kv_memory_bytes=2 << 30,
        enable_prefix_caching=False,
    )
    with group_of_one(torch.device("cuda", 0)):
        engines = {mode: lone_engine(model, config, mode) for mode in (None, TPMode.EXACT, TPMode.FAST)}
        for batch in batches:
            for temperature in (0.0, 0.8):
                wanted = generate(engines[None], batch, NEW_TOKENS, temperature)
                for mode in TPMode:
                    found = generate(engines[mode], batch, NEW_TOKENS, temperature)
                    same = sum(a == b for x, y in zip(wanted, found, strict=True) for a, b in zip(x, y, strict=True))
                    print(
                        f"batch {batch}, temperature {temperature}, {mode}: {same} of {batch * NEW_TOKENS} tokens equal"
                    )
            rounds = [{mode: step_ms(engine, batch) for mode, engine in engines.items()} for _ in range(ROUNDS)]
            for asked in engines:
                middle = statistics.median(one[asked] for one in rounds)
                ratio = statistics.median(one[asked] / one[None] for one in rounds)
                nodes = max(graph.num_nodes for graph in engines[asked].worker.decode.reports.values())
                name = "no ranks" if asked is None else f"one rank, {asked}"
                print(
                    f"batch {batch}, {name}: {middle:.4f} ms per step, {ratio:.4f} of no ranks, {nodes} nodes",
                    flush=True,
                )


if __name__ == "__main__":
    main(sys.argv[1], [int(text) for text in sys.argv[2:]] or [1, 32])
