"""Random arrivals, lengths, aborts, preemption and shared prefixes: every token is what the request gets alone.

`PLAYHEAD_FUZZ_REQUESTS` is how many requests the tiny model gets; the embedded one gets a fifth of them. A test has at
most a thousand: a campaign runs on all cores, and one that is cut off shows how far it came.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from playhead.engine.engine import Engine
from playhead.kv.ledger import Ledger
from playhead.kv.plan import KVLimits
from playhead.llm import EngineConfig
from playhead.outputs import RequestOutput
from playhead.sampling_params import SamplingParams
from playhead.testing.tiny_engine import tiny_engine
from tests.e2e.embedded import differences, reference, sampling, shared_llm

NUM_REQUESTS = int(os.environ.get("PLAYHEAD_FUZZ_REQUESTS", "300"))
NUM_SHARDS = -(-NUM_REQUESTS // 1000)
PER_SHARD = NUM_REQUESTS // NUM_SHARDS
EMBEDDED = EngineConfig(
    dtype="float32",
    max_model_len=160,
    max_num_seqs=6,
    max_num_batched_tokens=48,
    page_size=4,
    kv_memory_bytes=1_200_000,
)
TINY = KVLimits(max_context_tokens=64, max_running=6, chunk_tokens=24)
TINY_BYTES = 23_000


@dataclass(frozen=True, kw_only=True)
class Asked:
    number: int
    prompt: list[int]
    num_tokens: int
    kind: str

    @property
    def params(self) -> SamplingParams:
        """As it is asked: some with a stop token, which is seen late, some with other fields that few requests have."""
        params = sampling(self.kind, self.number, self.num_tokens)
        if self.number % 5 == 0:
            params = replace(params, stop_token_ids=list(range(self.number % 7, 64, 7)))
        if self.number % 11 == 0:
            params = replace(params, presence_penalty=0.5, repetition_penalty=1.2)
        if self.number % 7 == 3:
            params = replace(params, allowed_token_ids=list(range(self.number % 3, 64, 3)))
        if self.number % 8 == 6:
            params = replace(params, prompt_logprobs=1)
        return replace(params, logprobs=1) if self.number % 13 == 0 else params

    @property
    def params_alone(self) -> SamplingParams:
        return replace(self.params, logprobs=reference(self.kind, self.number, self.num_tokens).logprobs)


def requests(seed: int, count: int, *, longest: int, vocab_size: int) -> Iterator[Asked]:
    """One after the other; half of the prompts begin like an earlier one."""
    rng = random.Random(seed)
    known: list[list[int]] = []
    for number in range(count):
        prompt = [rng.randrange(vocab_size) for _ in range(rng.randint(1, longest))]
        if known and rng.random() < 0.5:
            shared = rng.choice(known)
            prompt = [*shared[: rng.randint(1, len(shared))], *prompt][:longest]
        known = [*known[-20:], prompt]
        yield Asked(number=number, prompt=prompt, num_tokens=rng.randint(1, 14), kind=rng.choice(["greedy", "drawn"]))


def run_fuzz(engine: Engine, asked: list[Asked], seed: int) -> dict[int, RequestOutput]:
    """Outputs of the requests that were not aborted, by number."""
    rng = random.Random(seed)
    finished: dict[int, RequestOutput] = {}
    waiting, running = list(reversed(asked)), set()
    while waiting or engine.has_work:
        for _ in range(rng.choice([0, 0, 1, 3])):
            if waiting and engine.can_take:
                request = waiting.pop()
                engine.add_request(str(request.number), request.prompt, request.params)
                running.add(request.number)
        if running and rng.random() < 0.04:
            gone = rng.choice(sorted(running))
            engine.abort(str(gone))
            running.discard(gone)
        for output in engine.step():
            if output.finished:
                finished[int(output.request_id)] = output
                running.discard(int(output.request_id))
        assert Ledger(engine.worker.kv).audit() == []
    return finished


class Alone:
    """What each request gets alone, from an engine that keeps no prefix. Each is run once, whoever asks."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._known = engine, {}

    def __call__(self, request: Asked) -> RequestOutput:
        if request.number not in self._known:
            self._engine.add_request("alone", request.prompt, request.params_alone)
            outputs: list[RequestOutput] = []
            while self._engine.has_work:
                outputs += self._engine.step()
            self._known[request.number] = outputs[-1]
        return self._known[request.number]


def prompt_logprobs(output: RequestOutput) -> list[float]:
    """Of each prompt token; empty if they were not asked for."""
    if output.prompt_logprobs is None:
        return []
    tables = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
    return [table[token].logprob for token, table in tables]


def check(engine: Engine, alone: Alone, asked: list[Asked], seed: int) -> None:
    finished = run_fuzz(engine, asked, seed)
    wanted = [alone(asked[number]) for number in finished]
    real, num_ties = differences(list(finished.values()), wanted)
    stats = engine.stats
    print(
        f"{len(asked)} requests, {len(finished)} to the end, {stats.num_generated_tokens} tokens, {num_ties} ties, "
        f"{stats.num_preemptions} preemptions, {stats.num_cached_tokens} cached tokens, "
        f"{stats.num_wasted_rows} rows wasted"
    )
    assert real == []
    for found, one in zip(finished.values(), wanted, strict=True):
        assert prompt_logprobs(found) == pytest.approx(prompt_logprobs(one), abs=1e-3)
    assert len(finished) > len(asked) // 2
    assert min(stats.num_preemptions, stats.num_cached_tokens) > 0
    assert not engine.worker.kv.sequences


@pytest.mark.parametrize("seed", range(NUM_SHARDS))
def test_tiny_model(seed):
    asked = list(requests(seed, PER_SHARD, longest=40, vocab_size=64))
    alone = Alone(tiny_engine(overlap=False, prefix_caching=False, limits=TINY))
    for overlap in (True, False):
        check(tiny_engine(overlap=overlap, kv_memory_bytes=TINY_BYTES, limits=TINY), alone, asked, seed)


@pytest.mark.parametrize("seed", range(NUM_SHARDS))
def test_embedded_model(seed):
    asked = list(requests(seed, PER_SHARD // 5, longest=100, vocab_size=4096))
    alone = Alone(shared_llm(replace(EMBEDDED, enable_prefix_caching=False, kv_memory_bytes=1 << 25)).engine)
    for overlap in (True, False):
        check(shared_llm(replace(EMBEDDED, overlap=overlap)).engine, alone, asked, seed)
