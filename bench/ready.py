"""From the shell to a server's first answer: `python -m bench.ready bench/models/gemma3-1b`.

The checkpoint is written first: random weights of the real shapes in bfloat16, and a tokenizer with a word for each id.
Each run is a server of its own, in two processes as by default on a GPU; `/ready` is asked every 0.1 s. The first run
finds files that were just written but no compiled kernels; the later ones are warm.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from bench.measure import emit
from bench.over_http import model_with_words
from playhead.load.client import Load, SendOptions
from playhead.load.exchange import Exchange, Outcome, PlannedRequest
from playhead.load.own_server import own_server

PROMPT_TOKENS = 128


def checkpoint(config: Path, folder: Path) -> Path:
    """A directory as it is downloaded: config, weights, tokenizer."""
    model_with_words(config, folder)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(config), dtype=torch.bfloat16)
    model.save_pretrained(folder)
    return folder


def first_answer() -> Exchange:
    body = {"prompt": list(range(3, 3 + PROMPT_TOKENS)), "max_tokens": 2, "temperature": 0, "stream": True}
    return Exchange(PlannedRequest(at_s=0.0, body=json.dumps(body).encode(), input_len=PROMPT_TOKENS, output_len=2))


def start(model: Path) -> tuple[float, float]:
    """Seconds until `/ready` says yes, and until the first token of a request that is sent then."""
    started_s = time.perf_counter()
    with own_server(str(model), ["--process=two"]) as target:
        ready_s = time.perf_counter()
        exchange = first_answer()
        asyncio.run(Load(target, [exchange], SendOptions()).run())
        if exchange.outcome is not Outcome.FINISHED:
            raise RuntimeError(f"the first request: found {exchange.outcome}; wanted an answer.")
    return ready_s - started_s, exchange.first_s - started_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="a directory with a config.json")
    parser.add_argument("--runs", type=int, default=4)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = checkpoint(args.model, Path(folder))
        for run in range(args.runs):
            ready_s, first_token_s = start(model)
            emit("start of a server", model=args.model.name, run=run, ready_s=ready_s, first_token_s=first_token_s)


if __name__ == "__main__":
    main()
