"""The audit of a worker: all its runners, on random steps over real sequences of its KV cache."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from playhead.errors import OutOfPages
from playhead.graph.audit import Sample, SampledStep, audit
from playhead.graph.report import Report
from playhead.graph.runner import GraphRunner
from playhead.kv.sequence import SequenceKV
from playhead.sampling_params import SamplingParams
from playhead.schedule.request import Chunk, Request
from playhead.step.inputs import batch_of
from playhead.step.sampling import MASKS_SLOT
from playhead.step.worker import Worker


def audit_worker(worker: Worker) -> list[Report]:
    """One report per runner. The worker must be idle; missing captures are made first."""
    worker.capture_all()
    if worker.leader is None:
        return audit_here(worker)
    worker.kv.flush_prefixes()  # each rank takes pages of its own: other ranks may write where this one has a prefix
    with worker.leader.leading_audit():
        reports = audit_here(worker)
    worker.kv.rows.show_all()
    worker.kv.allocator.mapping.show_all()
    return reports


def audit_here(worker: Worker) -> list[Report]:
    """The reports of this rank. All ranks do this at once: they meet in every step that is audited."""
    sequences: list[SequenceKV] = []
    try:
        place_sequences(worker, sequences)
        worker.publish()
        over_tokens = prefill_sample(worker, sequences)
        others = [runner for runner in worker.runners if runner is not worker.prefill and runner.captured]
        return [
            audit(runner, over_tokens if runner.step.axis == "tokens" else decode_sample(worker, sequences, runner))
            for runner in (*others, worker.prefill)
        ]
    finally:
        for seq in sequences:
            worker.kv.abort(seq)


def place_sequences(worker: Worker, sequences: list[SequenceKV]) -> None:
    """Fill the list with sequences of a chunk each, as many as may run and memory holds; at least one fits any plan."""
    limits = worker.config.limits
    for i in range(limits.max_running):
        seq = worker.kv.admit(f"audit {i}", [1])
        try:
            worker.kv.extend(seq, min(limits.chunk_tokens, limits.max_context_tokens))
        except OutOfPages:
            worker.kv.abort(seq)
            return
        # Greedy and drawing rows in turn: a graph that draws must leave the greedy ones alone.
        params = SamplingParams(temperature=0.7 * (i % 2), min_p=0.01, seed=i)
        request = Request(id=seq.request, prompt=(1,), params=params, max_new_tokens=1, arrival=i)
        # Where graphs read the sampler's tables, there is something in them.
        if worker.sampler.tables is not None:
            rare = replace(params, frequency_penalty=1.0, allowed_token_ids=range_of(worker, i))
            request = replace(request, params=rare, bad_words=((2, 2), (3,)))
        worker.sampler.set(seq.row, request)
        sequences.append(seq)


def range_of(worker: Worker, i: int) -> list[int]:
    """Other ids for each row: a row that reads another one's table draws what it may not."""
    return list(range(i % 2, worker.model.decoder.spec.vocab_size, 2))


def random_chunk(worker: Worker, seq: SequenceKV, num_tokens: int, rng: np.random.Generator) -> Chunk:
    """The last `num_tokens` of some prefix of the sequence, with random token ids."""
    end = int(rng.integers(num_tokens, seq.num_tokens + 1))
    tokens = rng.integers(0, worker.model.decoder.spec.vocab_size, num_tokens).tolist()
    return replace(Chunk.newest(seq, tokens), end=end)


def decode_sample(worker: Worker, sequences: list[SequenceKV], runner: GraphRunner) -> Sample:
    """One token each of `raw` sequences, or of all there are; where the runner reads masks, each allows other ids."""

    def make(raw: int, seed: int) -> SampledStep:
        rng = np.random.default_rng((seed, raw))
        raw = min(raw, len(sequences))
        chosen = rng.permutation(len(sequences))[:raw]
        chunks = [random_chunk(worker, sequences[i], 1, rng) for i in chosen]
        batch = batch_of(worker.decode_inputs, worker.requests(chunks))
        if MASKS_SLOT in runner.registry.slots:
            shape = runner.registry.get_slot(MASKS_SLOT).rows(0, raw).shape
            batch[MASKS_SLOT] = rng.integers(-(2**31), 2**31, tuple(shape), dtype=np.int32)
        return SampledStep(batch=batch, raw_bs=raw, raw_num_tokens=raw)

    return make


def prefill_sample(worker: Worker, sequences: list[SequenceKV]) -> Sample:
    """`raw` tokens, or as many as there are, spread over as many sequences as they need and a few more."""

    def make(raw: int, seed: int) -> SampledStep:
        rng = np.random.default_rng((seed, raw))
        most_each = sequences[0].num_tokens
        raw = min(raw, most_each * len(sequences))
        num_requests = min(raw, -(-raw // most_each) + seed, len(sequences))
        cuts = np.linspace(0, raw, num_requests + 1).astype(int)
        chosen = rng.permutation(len(sequences))[:num_requests]
        chunks = [random_chunk(worker, sequences[i], int(n), rng) for i, n in zip(chosen, np.diff(cuts), strict=True)]
        batch = batch_of(worker.prefill_inputs, worker.requests(chunks))
        return SampledStep(batch=batch, raw_bs=num_requests, raw_num_tokens=raw)

    return make
