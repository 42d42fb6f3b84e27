"""From the shell to a server's first answer: `python -m bench.ready bench/models/gemma3-1b`.

The checkpoint is written first: random weights of the real shapes in bfloat16, and a tokenizer with a word for each id.
Each run is a server of its own, in two processes as by default on a GPU; `/ready` is asked every 0.1 s. The first run
finds files that were just written, but no compiled kernels, and no compiled modules of Python; the later ones are warm.
Beside the clock stand the seconds of a processor that each of the two processes had taken when `/ready` said yes.

`--small` keeps the vocabulary and has two small layers, for a machine without a GPU. `--merges` writes a tokenizer
that makes its tokens of characters by as many merges, as a trained one does: reading those is most of the work.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

import torch
from tokenizers import Tokenizer, decoders, models
from transformers import AutoConfig, AutoModelForCausalLM

from bench.fresh_start import installed
from bench.measure import emit
from bench.over_http import model_with_words
from playhead.load.client import Load, SendOptions
from playhead.load.exchange import Exchange, Outcome, PlannedRequest
from playhead.load.own_server import own_server

PROMPT_TOKENS = 128
FIRST_CHAR = 0x4E00
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
}


def checkpoint(args: argparse.Namespace, folder: Path) -> Path:
    """A directory as it is downloaded: config, weights, tokenizer."""
    model_with_words(args.model, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if args.merges:
        write_merges(config["vocab_size"], folder)
    if args.small:
        config |= SMALL | ({"layer_types": config["layer_types"][:2]} if "layer_types" in config else {})
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.bfloat16)
    model.save_pretrained(folder)
    return folder


def write_merges(vocab_size: int, folder: Path) -> None:
    """A tokenizer of single characters and of pairs of them, in random order, each pair by a merge."""
    chars = [chr(FIRST_CHAR + i) for i in range(math.isqrt(vocab_size) + 1)]
    pairs = [(a, b) for a in chars for b in chars]
    random.Random(0).shuffle(pairs)
    pairs = pairs[: vocab_size - len(chars)]
    tokens = [*chars, *("".join(pair) for pair in pairs)]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=pairs))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(folder / "tokenizer.json"))


def children_of(process: int) -> list[int]:
    """The processes that a process has started."""
    tasks = Path(f"/proc/{process}/task").glob("*/children")
    return sorted(int(child) for task in tasks for child in task.read_text().split())


def command_of(process: int) -> bytes:
    return Path(f"/proc/{process}/cmdline").read_bytes()


def processor_s(process: int) -> float:
    """Seconds of a processor that a process has taken."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def first_answer() -> Exchange:
    body = {"prompt": list(range(3, 3 + PROMPT_TOKENS)), "max_tokens": 2, "temperature": 0, "stream": True}
    return Exchange(PlannedRequest(at_s=0.0, body=json.dumps(body).encode(), input_len=PROMPT_TOKENS, output_len=2))


def start(model: Path) -> dict[str, float]:
    """Seconds until `/ready` says yes, and until the first token of a request that is sent then."""
    started_s = time.perf_counter()
    with own_server(str(model), ["--process=two"]) as target:
        ready_s = time.perf_counter()
        server = children_of(os.getpid())[-1]
        engine = next(child for child in children_of(server) if b"engine_entry" in command_of(child))
        taken = {"http_cpu_s": processor_s(server), "engine_cpu_s": processor_s(engine)}
        exchange = first_answer()
        asyncio.run(Load(target, [exchange], SendOptions()).run())
        if exchange.outcome is not Outcome.FINISHED:
            raise RuntimeError(f"the first request: found {exchange.outcome}; wanted an answer.")
    return {"ready_s": ready_s - started_s, "first_token_s": exchange.first_s - started_s, **taken}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="a directory with a config.json")
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--merges", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as caches:
        model = checkpoint(args, Path(folder))
        for run in range(args.runs):
            with patch.dict(os.environ, installed(Path(caches)), clear=True):
                measured = start(model)
            emit("start of a server", model=args.model.name, run=run, **measured)


if __name__ == "__main__":
    main()
