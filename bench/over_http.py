"""What HTTP costs on a GPU: the peers' mixed workload in the library, then the same requests as streams of a server.

`python -m bench.over_http bench/models/gemma3-1b`. Weights are dummies of the real shapes. The server runs in two
processes, as it does by default on a GPU. Several client processes read the streams, so that none of them is what is
measured. Needs what `playhead serve` needs, and nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from bench import workload
from bench.measure import emit
from playhead.llm import LLM
from playhead.load.client import Load, SendOptions, Target
from playhead.load.exchange import Exchange, Outcome, PlannedRequest
from playhead.load.own_server import own_server
from playhead.sampling_params import SamplingParams

ENGINE = {"load_format": "dummy", "max_model_len": workload.MAX_LEN, "max_num_batched_tokens": 8192}
CLIENTS = 6
START_S = 6.0  # the clients' imports


def model_with_words(config: Path, folder: Path) -> Path:
    """A directory with the model's config and a tokenizer that has a word for each of its ids."""
    vocab_size = json.loads((config / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    shutil.copy(config / "config.json", folder)
    tokenizer = Tokenizer(models.BPE(vocab={f"Ġw{i}": i for i in range(vocab_size)}, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def library_rates(model: str, rounds: int) -> list[float]:
    """Tokens per second of the library, after a round that captures graphs."""
    prompts, out_lens = workload.throughput_set()
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in out_lens]
    rates = []
    with LLM(model, enable_prefix_caching=False, **ENGINE) as llm:
        for _ in range(rounds + 1):
            started = time.perf_counter()
            outputs = llm.generate(prompts, params)
            seconds = time.perf_counter() - started
            rates.append(sum(len(output.outputs[0].token_ids) for output in outputs) / seconds)
    return rates[1:]


def planned(share: int) -> list[PlannedRequest]:
    """Every `CLIENTS`-th request of the workload, all at once."""
    prompts, out_lens = workload.throughput_set()
    requests = []
    for prompt, out_len in list(zip(prompts, out_lens, strict=True))[share::CLIENTS]:
        body = {"prompt": prompt, "max_tokens": out_len, "temperature": 0, "ignore_eos": True, "stream": True}
        requests.append(
            PlannedRequest(
                at_s=0.0,
                body=json.dumps({**body, "stream_options": {"include_usage": True}}).encode(),
                input_len=len(prompt),
                output_len=out_len,
            )
        )
    return requests


def client(url: str, share: int, start_at: float) -> None:
    """One client process: prints when its first request went out, when its last answer ended, and what came."""
    exchanges = [Exchange(one) for one in planned(share)]
    time.sleep(max(0.0, start_at - time.time()))
    asyncio.run(Load(Target.of(url), exchanges, SendOptions()).run())
    shift = time.time() - time.perf_counter()
    wrong = [str(one.outcome) for one in exchanges if one.outcome is not Outcome.FINISHED]
    print(
        json.dumps(
            {
                "first": min(one.sent_s for one in exchanges) + shift,
                "last": max(one.end_s for one in exchanges) + shift,
                "tokens": sum(one.num_tokens for one in exchanges),
                "events": sum(one.num_events for one in exchanges),
                "wrong": wrong,
                "first_ms": [1e3 * (one.first_s - one.sent_s) for one in exchanges],
                "gaps_ms": [1e3 * gap for one in exchanges for gap in one.gaps_s][::37],
            }
        )
    )


def http_round(url: str) -> dict[str, float]:
    """All clients once."""
    start_at = str(time.time() + START_S)
    command = [sys.executable, "-m", "bench.over_http", "--url", url, "--start-at", start_at]
    running = [
        subprocess.Popen([*command, "--share", str(share)], stdout=subprocess.PIPE, text=True)
        for share in range(CLIENTS)
    ]
    said = [json.loads(process.communicate()[0].splitlines()[-1]) for process in running]
    seconds = max(one["last"] for one in said) - min(one["first"] for one in said)
    gaps = sorted(gap for one in said for gap in one["gaps_ms"])
    return {
        "tok_s": sum(one["tokens"] for one in said) / seconds,
        "tokens_per_event": sum(one["tokens"] for one in said) / sum(one["events"] for one in said),
        "wrong": sum(len(one["wrong"]) for one in said),
        "first_ms_p50": statistics.median(first for one in said for first in one["first_ms"]),
        "gap_ms_p50": gaps[len(gaps) // 2],
        "gap_ms_p99": gaps[len(gaps) * 99 // 100],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--process", default="two")
    parser.add_argument("--url")
    parser.add_argument("--share", type=int, default=0)
    parser.add_argument("--start-at", type=float, default=0.0)
    args = parser.parse_args(arguments)
    if args.url:
        client(args.url, args.share, args.start_at)
        return
    with tempfile.TemporaryDirectory() as folder:
        model = str(model_with_words(args.model, Path(folder)))
        library = library_rates(model, args.rounds)
        emit("library", model=args.model.name, tok_s=statistics.median(library), rounds=len(library))
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in ENGINE.items()]
        with own_server(model, [*flags, "--no-enable-prefix-caching", f"--process={args.process}"]) as target:
            http_round(target.url)
            rounds = [http_round(target.url) for _ in range(args.rounds)]
        for one in rounds:
            emit("http", **one)
        rate = statistics.median(one["tok_s"] for one in rounds)
        emit("over http", tok_s=rate, ratio=rate / statistics.median(library))


if __name__ == "__main__":
    main()
