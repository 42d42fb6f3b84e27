"""What HTTP costs: `python -m bench.http bench/models/gemma3-1b [--streams 256] [--server-flags "--process two"]`.

The peers' mixed workload (`workload.py`: prompts of 64 to 1024 tokens, answers of 64 to 512, all sent at once) through
the library, in a process of its own, and then through a server, with every token streamed. Each set runs twice, and the
second time counts: by then every graph it needs is captured. Weights are random, so a tokenizer is made up that has a
text for every id. `embedded --streams 16 --shrink 16` is for a CPU.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from bench import workload
from playhead.load.client import Load, SendOptions, Target
from playhead.load.exchange import Exchange, Outcome, PlannedRequest
from playhead.load.figures import answered, spread
from playhead.load.measure import served_model
from playhead.load.own_server import own_server

LIBRARY = "--library"


def requests_of(args: argparse.Namespace, tag: str) -> tuple[list[list[int]], list[int]]:
    """The workload's prompts and lengths, made smaller if asked."""
    prompts, outs = workload.throughput_set(tag, args.streams)
    shrunk = [[token % args.vocab for token in prompt[: max(1, len(prompt) // args.shrink)]] for prompt in prompts]
    return shrunk, [max(1, out // args.shrink) for out in outs]


def engine_flags(args: argparse.Namespace) -> dict[str, Any]:
    """The same engine on both sides."""
    flags: dict[str, Any] = {
        "max_model_len": max(64, workload.MAX_LEN // args.shrink),
        "max_num_batched_tokens": args.max_num_batched_tokens,
        "max_num_seqs": args.streams,
    }
    return flags if args.model == "embedded" else flags | {"load_format": "dummy"}


def measure_library(args: argparse.Namespace) -> None:
    """Print the tokens per second of each repetition."""
    from playhead.llm import LLM, EngineConfig
    from playhead.sampling_params import SamplingParams

    llm = LLM(args.model, EngineConfig(enable_prefix_caching=False, **engine_flags(args)))
    llm.capture_graphs()
    for number in range(2 * args.reps):
        prompts, outs = requests_of(args, f"throughput{number // 2}")
        params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True, detokenize=args.text) for n in outs]
        started = time.perf_counter()
        num_tokens = sum(len(output.outputs[0].token_ids) for output in llm.generate(prompts, params, use_tqdm=False))
        if number % 2:
            print(json.dumps({"side": "library", "tokens_per_s": num_tokens / (time.perf_counter() - started)}))


async def measure_server(args: argparse.Namespace, target: Target) -> None:
    """The same through HTTP."""
    model = await served_model(target)
    for number in range(2 * args.reps):
        pairs = zip(*requests_of(args, f"throughput{number // 2}"), strict=True)
        exchanges = [Exchange(planned(model, *pair)) for pair in pairs]
        load = Load(target, exchanges, SendOptions())
        cpu_s = time.process_time()
        await load.run()
        cpu_s = time.process_time() - cpu_s
        if number % 2:
            show(exchanges, load.started_s, cpu_s)


def planned(model: str, prompt: list[int], num_tokens: int) -> PlannedRequest:
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": num_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return PlannedRequest(at_s=0.0, body=json.dumps(body).encode(), input_len=len(prompt), output_len=num_tokens)


def show(exchanges: list[Exchange], started_s: float, cpu_s: float) -> None:
    bad = [one for one in exchanges if one.outcome is not Outcome.FINISHED]
    if bad:
        raise SystemExit(
            f"{len(bad)} of {len(exchanges)} did not finish: {bad[0].outcome} {bad[0].status} {bad[0].detail}"
        )
    num_tokens, num_events = (
        sum(values) for values in zip(*((e.num_tokens, e.num_events) for e in exchanges), strict=True)
    )
    ended = [answered(one, started_s) for one in exchanges]
    seconds = max(one.end_s for one in exchanges) - started_s
    facts = {
        "tokens_per_s": num_tokens / seconds,
        "tokens": num_tokens,
        "events": num_events,
        "client_cpu_us_per_event": cpu_s / num_events * 1e6,
        "first_token_ms": spread([one.first_ms for one in ended if one.first_ms is not None]),
        "inter_token_ms": spread([gap for one in ended for gap in one.gaps_ms or ()]),
    }
    print(json.dumps({"side": "http", **facts}), flush=True)


def make_tokenizer(folder: Path, vocab_size: int) -> None:
    """A text for every id: a model with random weights writes any of them."""
    vocab = {f"Ġw{i}": i for i in range(vocab_size)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a directory with a config.json, or embedded")
    parser.add_argument("--streams", type=int, default=workload.TP_REQ)
    parser.add_argument("--reps", type=int, default=2)
    parser.add_argument("--shrink", type=int, default=1)
    parser.add_argument("--max-num-batched-tokens", type=int, default=8192)
    parser.add_argument("--server-flags", default="")
    parser.add_argument("--text", action="store_true", help="the library makes text too")
    parser.add_argument(LIBRARY, action="store_true", help="only the library's side, in this process")
    args = parser.parse_args()
    config = {} if args.model == "embedded" else json.loads((Path(args.model) / "config.json").read_text())
    args.vocab = min(int(config.get("vocab_size", 4096)), workload.ID_HIGH)
    if args.library:
        measure_library(args)
        return
    library = subprocess.run(
        [sys.executable, "-m", "bench.http", *sys.argv[1:], LIBRARY], check=True, stdout=subprocess.PIPE, text=True
    )
    print(library.stdout, end="", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in engine_flags(args).items()]
        flags += ["--no-enable-prefix-caching", "--log-level", "warning", *shlex.split(args.server_flags)]
        if args.model != "embedded":
            make_tokenizer(Path(folder), int(config["vocab_size"]))
            flags += ["--tokenizer", folder]
        with own_server(args.model, flags) as target:
            asyncio.run(measure_server(args, target))


if __name__ == "__main__":
    main()
