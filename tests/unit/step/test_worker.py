"""A tiny hybrid model through both runners: the right logits, from audited graphs, leaving a clean account."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from playhead.engine.front import RequestOptions
from playhead.graph import Check, Mode, Reason
from playhead.kv.ledger import Ledger
from playhead.kv.plan import KVLimits
from playhead.sampling_params import SamplingKind
from playhead.schedule.request import Chunk
from playhead.step.audit import audit_worker
from playhead.testing.tiny_engine import checked_ask, crowd, tiny_engine
from playhead.testing.tiny_worker import TINY_GPT_OSS, dense_logits, last_logits, tiny_worker

MODES = [Mode.FULL, Mode.BREAKABLE, Mode.PIECEWISE, Mode.EAGER]


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("mode", MODES)
def test_logits_are_those_of_dense_attention(mode, page_size):
    worker = tiny_worker(mode, page_size=page_size)
    prompts = [[7, 8, 9, 10, 11, 12, 13], [7], [20, 21, 22]]
    logits = last_logits(worker, prompts)
    for row, prompt in zip(logits, prompts, strict=True):
        torch.testing.assert_close(row, dense_logits(worker.model.decoder, prompt)[0], rtol=1e-5, atol=1e-5)


def test_requests_that_share_their_first_pages_in_one_step_do_not_disturb_each_other():
    """The launch gives one of them the other's page; the step that runs must still use what it was told."""
    worker = tiny_worker()
    prompts = [[7, 8, 9], [7], [7, 8]]
    logits = last_logits(worker, prompts)
    for row, prompt in zip(logits, prompts, strict=True):
        torch.testing.assert_close(row, dense_logits(worker.model.decoder, prompt)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", [Mode.FULL, Mode.BREAKABLE, Mode.PIECEWISE])
def test_a_chunk_of_one_token_may_be_what_is_captured_first(mode):
    """With more of its prompt to come it runs over tokens; a trace made of it would know one row alone."""
    worker, prompt = tiny_worker(mode), [7, 8, 9, 10, 11, 12]
    seq = worker.kv.admit("one by one", prompt)
    worker.kv.extend(seq, 1)
    first = worker.run([replace(Chunk.newest(seq, prompt[:1]), samples=False)])
    worker.kv.extend(seq, 5)
    rest = worker.run([Chunk.newest(seq, prompt[1:])])
    assert (first.decision.bucket, rest.decision.bucket) == (1, 8)
    wanted = dense_logits(worker.model.decoder, prompt)
    torch.testing.assert_close(rest.logits_NV, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", [Mode.FULL, Mode.BREAKABLE, Mode.PIECEWISE])
def test_all_runners_are_clean_under_the_audit(mode):
    """Every promise is looked at, but for tails that are claimed unread (no input says so) and pointers (on CUDA)."""
    reports = audit_worker(tiny_worker(mode))
    for report in reports:
        assert report.ok, report.text()
        assert {check for check in Check if not report.checked[check]} == {Check.UNREAD_TAILS, Check.POINTERS}
    assert [report.name for report in reports] == ["decode, greedy", "decode, drawn", "prefill"]


@pytest.mark.parametrize("mode", [Mode.FULL, Mode.BREAKABLE])
def test_experts_are_clean_under_the_audit(mode):
    """They are where rows meet, and wide enough to round by how many rows they have."""
    for report in audit_worker(tiny_worker(mode, model={**TINY_GPT_OSS, "hidden_size": 128})):
        assert report.ok, report.text()


def test_a_worker_for_one_request_can_be_audited_too():
    """Its largest bucket has more tokens than its one sequence: the audit takes as many as there are."""
    limits = KVLimits(max_context_tokens=8, max_running=1, chunk_tokens=8)
    for report in audit_worker(tiny_worker(limits=limits)):
        assert report.ok, report.text()


def test_graphs_that_read_the_samplers_tables_are_clean_under_the_audit():
    worker = tiny_worker(Mode.FULL, limits=KVLimits(max_context_tokens=8, max_running=2, chunk_tokens=4))
    worker.decoder_for(SamplingKind.EVERYTHING).capture_all()
    for report in audit_worker(worker):
        assert report.ok, report.text()


def test_one_token_each_goes_through_the_full_graph_and_anything_else_over_tokens():
    worker = tiny_worker()
    seqs = [worker.kv.admit(f"r{i}", [5 + i, 6, 7]) for i in range(2)]
    for seq in seqs:
        worker.kv.extend(seq, 2)
    first = worker.run([Chunk.newest(seq, [5, 6]) for seq in seqs])
    for seq in seqs:
        worker.kv.extend(seq, 1)
    second = worker.run([Chunk.newest(seq, [7]) for seq in seqs])
    assert (first.decision.mode, second.decision.mode) == (Mode.BREAKABLE, Mode.FULL)
    assert first.decision.reason is Reason.CAPTURE_NOW


def test_a_late_capture_without_memory_runs_eagerly_from_then_on(monkeypatch):
    worker, prompt = tiny_worker(), [7, 8, 9]
    calls = []

    def no_memory(*args):
        calls.append(args)
        raise torch.OutOfMemoryError("as a full GPU may")

    monkeypatch.setattr(worker.prefill.capture, "capture", no_memory)
    for _ in range(2):
        torch.testing.assert_close(
            last_logits(worker, [prompt]), dense_logits(worker.model.decoder, prompt), rtol=1e-5, atol=1e-5
        )
        worker.kv.flush_prefixes()
    assert len(calls) == 1
    assert worker.prefill.dispatcher.reasons[Reason.NO_MEMORY] == 2


def test_window_pages_come_back_while_a_request_decodes():
    worker = tiny_worker()
    seq = worker.kv.admit("long", [3])
    for n in range(20):
        worker.kv.extend(seq, 1)
        logits = worker.run([Chunk.newest(seq, [3 + n % 5])]).logits_NV
        assert len(seq.pages) - seq.frontiers[0] <= worker.model.decoder.spec.layers[0].attention.window + 1
    tokens = [3 + n % 5 for n in range(20)]
    torch.testing.assert_close(logits, dense_logits(worker.model.decoder, tokens), rtol=1e-5, atol=1e-5)


def test_the_account_balances_when_all_are_gone():
    worker = tiny_worker()
    last_logits(worker, [[1, 2, 3], [1, 2, 3, 4, 5]])
    worker.kv.flush_prefixes()
    assert Ledger(worker.kv).audit() == []


def test_decode_goes_on_without_a_fill_although_another_request_was_prefilled_between():
    """Both registries are on one pool. Decode's inputs, which its graph advances, are not among what they share."""

    def tokens_of(*, with_neighbour: bool) -> tuple[list[int], int]:
        worker = tiny_worker(page_size=16)
        seq = worker.kv.admit("one", [7, 8, 9])
        worker.kv.extend(seq, 3)
        tokens = worker.collect(worker.launch([Chunk.newest(seq, [7, 8, 9])])).sampled.tokens
        num_fills = []
        for step in range(4):
            worker.kv.extend(seq, 1)
            tokens += worker.collect(worker.launch([Chunk.newest(seq, [-seq.row])])).sampled.tokens
            num_fills.append(worker.decode.registry.num_fills)
            if with_neighbour:
                other = worker.kv.admit(f"neighbour {step}", [20, 21])
                worker.kv.extend(other, 2)
                worker.collect(worker.launch([Chunk.newest(other, [20, 21])]))
                worker.kv.abort(other)
        return tokens, num_fills[-1] - num_fills[0]

    assert tokens_of(with_neighbour=True) == tokens_of(with_neighbour=False)
    assert tokens_of(with_neighbour=True)[1] == 0


@pytest.mark.parametrize("overlap", [False, True])
def test_a_request_that_decodes_stands_at_its_length_minus_one(overlap):
    """The kernel of `write_and_decode` rotates the newest key by its request's length, not by a position."""
    engine, num_decoded = tiny_engine(overlap=overlap), 0
    for ask in crowd(seed=3, count=12):
        engine.submit(ask.name, checked_ask(engine, ask), RequestOptions())
    while engine.has_work:
        engine.step()
        slots, held = engine.worker.decode.registry.slots, engine.worker.rows.decode_slots
        num_requests = 0 if held is None else len(held.plan)
        positions, lengths = (slots[name].rows(0, num_requests) for name in ("positions", "seq_lens"))
        assert torch.equal(positions + 1, lengths)
        num_decoded += num_requests
    assert num_decoded > 50
