"""Every family over paged KV, through captured graphs, against transformers.

Each request stands for one way of arriving: in one piece, in chunks, token by token, all in the same steps. Token by
token compares every position; the others compare the last position of every step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from playhead.graph import Mode
from playhead.kv.plan import KVLimits
from playhead.kv.sequence import SequenceKV
from playhead.schedule.request import Chunk
from playhead.step.build import build_worker
from playhead.step.worker import Worker, WorkerConfig
from tests.parity.oracle import CASES, VOCAB, ours, reference, relative_error, their_logits

LIMITS = KVLimits(max_context_tokens=64, max_running=4, chunk_tokens=24)
NUM_DECODED = 4


@dataclass
class Arrival:
    """A request: its tokens, and how many of them come in each step until the prompt is through."""

    tokens: list[int]
    num_prompt: int
    pieces: list[int]
    seq: SequenceKV | None = None
    errors: list[float] = field(default_factory=list)

    def next_piece(self, step: int) -> list[int]:
        done = 0 if self.seq is None else self.seq.num_tokens
        size = self.pieces[step] if step < len(self.pieces) else 1
        return self.tokens[done : done + size]


def arrivals() -> list[Arrival]:
    def tokens(seed: int, count: int) -> list[int]:
        return [3 + (seed * 31 + i * i * 7) % (VOCAB - 3) for i in range(count)]

    return [
        Arrival(tokens(1, 20 + NUM_DECODED), 20, [20]),
        Arrival(tokens(2, 17 + NUM_DECODED), 17, [5, 5, 7]),
        Arrival(tokens(3, 3 + NUM_DECODED), 3, [1, 2]),
        Arrival(tokens(4, 12), 1, [1]),
    ]


def worker_for(decoder, *, page_size: int, mode: Mode) -> Worker:
    config = WorkerConfig(
        kv_memory_bytes=1 << 22, limits=LIMITS, page_size=page_size, token_mode=mode, strict_ledger=True
    )
    return build_worker(decoder, config)


def run_all(worker: Worker, model, requests: list[Arrival]) -> set[Mode]:
    """Step until every request has had all its tokens; returns the modes that ran."""
    modes, step = set(), 0
    wanted = {id(request): their_logits(model, request.tokens) for request in requests}
    while True:
        chunks, running = [], []
        for i, request in enumerate(requests):
            piece = request.next_piece(step)
            if piece:
                if request.seq is None:
                    request.seq = worker.kv.admit(f"r{i}", request.tokens[: request.num_prompt])
                worker.kv.extend(request.seq, len(piece))
                chunks.append(Chunk.newest(request.seq, piece))
                running.append(request)
        if not chunks:
            return modes
        result = worker.run(chunks)
        modes.add(result.decision.mode)
        for row, request in enumerate(running):
            newest = wanted[id(request)][request.seq.num_tokens - 1]
            request.errors.append(relative_error(result.logits_NV[row], newest))
        step += 1


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("mode", [Mode.EAGER, Mode.FULL, Mode.BREAKABLE])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_paged_graphs_give_transformers_logits(case, mode, page_size):
    model = reference(case)
    worker = worker_for(ours(model), page_size=page_size, mode=mode)
    requests = arrivals()
    modes = run_all(worker, model, requests)
    assert modes == ({Mode.EAGER} if mode is Mode.EAGER else {Mode.FULL, mode})
    worst = max(error for request in requests for error in request.errors)
    assert worst < 1e-4, worst


# One case of every family; the richer one where there are several.
PIECEWISE = ("gemma3", "gemma2", "llama-biases-tied", "mistral-windowed", "ministral", "qwen2-windowed", "qwen3-bias")
PIECEWISE += ("gpt_oss", "olmo3", "exaone4", "cohere2-bias", "cohere", "gemma", "glm4", "granite-biases-tied", "olmo2")
PIECEWISE += ("phi3-windowed-partial", "smollm3-windowed")


def test_every_family_has_a_piecewise_case():
    families = {case.config().model_type for case in CASES}
    assert {case.config().model_type for case in CASES if case.name in PIECEWISE} == families


@pytest.mark.parametrize("case", [case for case in CASES if case.name in PIECEWISE], ids=lambda case: case.name)
def test_compiled_pieces_give_transformers_logits(case):
    model = reference(case)
    worker = worker_for(ours(model), page_size=16, mode=Mode.PIECEWISE)
    requests = arrivals()
    assert run_all(worker, model, requests) == {Mode.FULL, Mode.PIECEWISE}
    assert max(error for request in requests for error in request.errors) < 1e-4


@pytest.mark.parametrize("name", ["gpt_oss", "llama", "qwen3"])
def test_compiled_pieces_in_half_precision_give_transformers_logits(name):
    """float16 keeps ten bits, and a few layers of rounding lose some of them. The norms in between keep it in range."""
    model = reference(next(case for case in CASES if case.name == name)).half()
    worker = worker_for(ours(model), page_size=16, mode=Mode.PIECEWISE)
    requests = arrivals()
    assert run_all(worker, model.float(), requests) == {Mode.FULL, Mode.PIECEWISE}
    assert max(error for request in requests for error in request.errors) < 2e-2


def test_a_prefix_hit_gives_the_same_logits():
    """The second request computes only what the first did not leave behind, window layers included."""
    model = reference(CASES[0])
    worker = worker_for(ours(model), page_size=1, mode=Mode.BREAKABLE)
    tokens = arrivals()[0].tokens
    logits = []
    for name in ("first", "second"):
        seq = worker.kv.admit(name, tokens)
        rest = tokens[seq.num_hit_tokens :]
        worker.kv.extend(seq, len(rest))
        logits.append(worker.run([Chunk.newest(seq, rest)]).logits_NV.clone())
        worker.kv.finish(seq, tokens)
    assert seq.num_hit_tokens == len(tokens) - 1
    assert relative_error(logits[1], logits[0]) < 1e-5
