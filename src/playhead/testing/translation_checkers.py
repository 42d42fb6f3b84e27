"""Checks of the translation from full to window locations, on the path that the engine's forwards take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from playhead.attention import base
from playhead.errors import StaleTranslation
from playhead.graph.oplog import OpRecord, byte_span
from playhead.kernels.rope import qk_rope_write
from playhead.kv.hybrid import HybridAllocator
from playhead.kv.pool import ForwardTokens
from playhead.kv.swa_pool import SWAKVPool
from playhead.kv.violations import ViolationLog
from playhead.schedule.request import Chunk
from playhead.step.worker import Worker
from playhead.testing.kv_pools import one_request
from playhead.testing.kv_rules import small_layer, small_plan
from playhead.testing.mutant import Checker, Oracle, swapped
from playhead.testing.tiny_worker import dense_logits, differences, last_logits, tiny_worker
from playhead.types import Mode

TRANSLATE = "playhead::translate.default"
GRAPH_MODES = (Mode.FULL, Mode.BREAKABLE, Mode.PIECEWISE)
LIVE_MODES = (Mode.BREAKABLE, Mode.PIECEWISE, Mode.EAGER)
"""Modes in which attention over tokens runs as Python and not as a part of a graph."""

# As long as each other, so that one's slots have the addresses and sizes of the other's. Longer than the window.
SAME_SIZE = ([7, 8, 9, 10, 11, 12, 13], [30, 31, 32, 33, 34, 35, 36], [20, 21, 22, 23, 24, 25, 26])


# The engine's graphs.


def touches(op: OpRecord, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether an op was given memory of one of these tensors."""
    spans = [byte_span(tensor) for tensor in tensors]
    return any(a.start < stop and start < a.stop for a in (*op.reads, *op.writes) for start, stop in spans)


def mapping_readers(worker: Worker) -> dict[str, list[str]]:
    """For each graph that a worker has captured, the ops that were given the device's mapping."""
    readers = {}
    for runner in worker.runners:
        for bucket, captured in runner.captured.items():
            ops = [op for recording in captured.recordings for op in recording.log.ops]
            found = [op.name for op in ops if touches(op, worker.pool.device_mappings)]
            readers[f"{runner.step.name}, {runner.capture.mode.value}, {bucket}"] = found
    return readers


def captured_worker(mode: Mode) -> Worker:
    """A worker with one graph of decode and one over tokens."""
    worker = tiny_worker(mode, page_size=2)
    worker.decode.capture_bucket(2)
    worker.prefill.capture_bucket(8)
    return worker


def check_engine_graphs() -> list[str]:
    """Decode, full, breakable and piecewise graphs hold one translation, and no other op is given the mapping."""
    for mode in GRAPH_MODES:
        readers = mapping_readers(captured_worker(mode))
        found = [f"{graph}: the mapping is read by {names}" for graph, names in readers.items() if names != [TRANSLATE]]
        if found:
            break
    return found


# What runs between captured segments.


@contextmanager
def mapping_gone_at_the_first_layer(worker: Worker) -> Iterator[None]:
    """The device's mapping is all sink from the first layer's write to the end of this block."""
    saved = [mapping.clone() for mapping in worker.pool.device_mappings]

    def write(*args: Any, **kwargs: Any) -> None:
        for mapping in worker.pool.device_mappings:
            mapping.zero_()
        qk_rope_write(*args, **kwargs)

    try:
        with swapped(base, "qk_rope_write", write):
            yield
    finally:
        for mapping, before in zip(worker.pool.device_mappings, saved, strict=True):
            mapping.copy_(before)


def check_live_layers(wanted: dict[tuple[int, ...], torch.Tensor]) -> list[str]:
    """Attention that runs live uses what the forward began with: it can do without the mapping."""
    found = []
    for mode in LIVE_MODES:
        worker = tiny_worker(mode, page_size=2)
        if mode is not Mode.EAGER:
            worker.prefill.capture_bucket(8)  # its warm-up runs layers too
        with mapping_gone_at_the_first_layer(worker):
            logits = last_logits(worker, SAME_SIZE[:1])
        found += differences(logits, wanted[tuple(SAME_SIZE[0])], f"{mode.value} without a mapping")
    return found


def check_steps_of_one_size(wanted: dict[tuple[int, ...], torch.Tensor]) -> list[str]:
    """Slots that were refilled in place and a mapping that moved show in the next step, eager or replayed.

    Each prompt comes in two chunks, in turn with the others: the second one's queries see keys of the first.
    """
    found = []
    for mode in (Mode.EAGER, *GRAPH_MODES):
        worker = tiny_worker(mode, page_size=2, prefix_caching=False)
        sequences = [worker.kv.admit(f"request {i}", prompt) for i, prompt in enumerate(SAME_SIZE)]
        for part in (slice(0, 4), slice(4, 7)):
            for seq, prompt in zip(sequences, SAME_SIZE, strict=True):
                worker.kv.extend(seq, len(prompt[part]))
                logits = worker.run([Chunk.newest(seq, prompt[part])]).logits_NV
                if part.stop == len(prompt):
                    found += differences(logits, wanted[tuple(prompt)], f"{mode.value}, {prompt}")
        if found:
            break
    return found


def check_engine_publication() -> list[str]:
    """A step is refused whose pairs of pages have not reached the device."""
    worker = tiny_worker()
    seq = worker.kv.admit("early", [7, 8, 9])
    worker.kv.extend(seq, 3)
    with swapped(Worker, "publish", lambda worker: None):
        try:
            worker.run([Chunk.newest(seq, [7, 8, 9])])
        except StaleTranslation:
            return []
    return ["a step ran on an unpublished mapping"]


def check_nobodys_token() -> list[str]:
    """A token whose location is -1 is written nowhere, by any graph of the engine."""
    found = []
    for mode in GRAPH_MODES:
        worker = captured_worker(mode)
        caches = [tensor for layer in worker.pool.layers_mapping for tensor in worker.pool.get_kv_buffer(layer)]
        before = [cache.clone() for cache in caches]
        for runner, bucket in ((worker.decode, 2), (worker.prefill, 8)):
            ctx = runner.placeholder_context(bucket)
            nobody = {"out_cache_loc": np.full(bucket, -1, dtype=np.int32)}
            runner.replay(bucket, runner.prepare({**runner.step.placeholder(ctx), **nobody}, ctx))
            if not all(torch.equal(cache, old) for cache, old in zip(caches, before, strict=True)):
                found.append(f"{mode.value}, {runner.step.name}: a token without a place was written")
    return found


# The pool's call by itself.


def check_views_of_one_storage() -> list[str]:
    """Two halves of one storage are different tokens, at one version of the mapping and with one length."""
    plan = small_plan([small_layer(8), small_layer(None)], page_size=4, num_slabs=60)
    allocator = HybridAllocator(plan, ViolationLog(strict=True))
    pool = SWAKVPool(plan, allocator.mapping, device=torch.device("cpu"))
    pages = allocator.allocate(2)
    pool.publish(allocator.mapping)
    tokens = one_request(plan, pages, range(8))
    halves = [pool.begin_forward(part).groups[1].new_locs_T.tolist() for part in (cut(tokens, 0, 4), cut(tokens, 4, 8))]
    wanted = pool.translate_loc_from_full_to_swa(tokens.full_locs_T).tolist()
    return [] if halves[0] + halves[1] == wanted else [f"halves of {wanted} were translated to {halves}"]


def cut(tokens: ForwardTokens, start: int, stop: int) -> ForwardTokens:
    """Some of a forward's tokens, as views."""
    return ForwardTokens(
        page_table_RP=tokens.page_table_RP,
        full_locs_T=tokens.full_locs_T[start:stop],
        rows_T=tokens.rows_T[start:stop],
        positions_T=tokens.positions_T[start:stop],
    )


def dense_same_size() -> dict[tuple[int, ...], torch.Tensor]:
    decoder = tiny_worker().model.decoder
    return {tuple(prompt): dense_logits(decoder, prompt) for prompt in SAME_SIZE}


DENSE_SAME_SIZE = Oracle(name="dense prompts of one size", compute=dense_same_size)

TRANSLATION_CHECKERS: tuple[Checker, ...] = (
    Checker(name="one translation in the engine's graphs", run=check_engine_graphs),
    Checker(name="live layers without a mapping", run=check_live_layers, oracles=(DENSE_SAME_SIZE,)),
    Checker(name="steps of one size", run=check_steps_of_one_size, oracles=(DENSE_SAME_SIZE,)),
    Checker(name="publication before a step", run=check_engine_publication),
    Checker(name="nobody's token", run=check_nobodys_token),
    Checker(name="views of one storage", run=check_views_of_one_storage),
)
