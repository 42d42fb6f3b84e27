"""The whole path on a GPU: paged KV, our kernels, CUDA graphs, against dense attention, and audited."""

from __future__ import annotations

import pytest
import torch

from playhead.graph import Mode
from playhead.kernels.experts import every_expert_over_every_row, grouped_matmul
from playhead.schedule.request import Chunk
from playhead.step.audit import audit_worker
from playhead.testing.tiny_worker import TINY_GPT_OSS, dense_logits, last_logits, tiny_worker

MODES_OF_TOKENS = (Mode.EAGER, Mode.FULL)
PROMPTS = [[7, 8, 9, 10, 11, 12, 13], [7], [20, 21, 22]]


def worst_error(found, wanted) -> float:
    return float((found - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("mode", [Mode.FULL, Mode.BREAKABLE, Mode.PIECEWISE, Mode.EAGER])
def test_logits_are_those_of_dense_attention(mode, page_size):
    worker = tiny_worker(mode, page_size=page_size, device="cuda")
    logits = last_logits(worker, PROMPTS)
    errors = [
        worst_error(row, dense_logits(worker.model.decoder, prompt)[0])
        for row, prompt in zip(logits, PROMPTS, strict=True)
    ]
    print(f"{mode} page {page_size}: error norms {[f'{error:.1e}' for error in errors]}")
    assert max(errors) < 5e-3


@pytest.mark.parametrize("ends", [(0, 0, 0, 0), (0, 3, 3, 5), (16, 16, 16, 16)])
def test_experts_leave_rows_alone_that_belong_to_none(ends):
    """A capture warms up on padding alone, and then no expert has a row."""
    rows_PI = torch.randn(16, 64, dtype=torch.bfloat16, device="cuda")
    weights_XIO = torch.randn(4, 64, 64, dtype=torch.bfloat16, device="cuda").mT
    ends_X = torch.tensor(ends, dtype=torch.int32, device="cuda")
    found_PO = grouped_matmul(rows_PI, weights_XIO, ends_X)[: ends[-1]]
    torch.cuda.synchronize()
    wanted_PO = every_expert_over_every_row(rows_PI.float(), weights_XIO.float(), ends_X)[: ends[-1]]
    torch.testing.assert_close(found_PO.float(), wanted_PO, rtol=2e-2, atol=1e-1)


def test_experts_run_on_rows_that_nobody_computed():
    """In a full graph padded rows of attention are whatever memory held, NaN included, and are sent to experts too."""
    workers = [tiny_worker(mode, model=TINY_GPT_OSS, dtype=torch.bfloat16, device="cuda") for mode in MODES_OF_TOKENS]
    memory = torch.full((1 << 26,), float("nan"), device="cuda")
    del memory  # what the graphs are given next
    eager, full = (last_logits(worker, PROMPTS) for worker in workers)
    assert bool(full.isfinite().all())
    assert worst_error(full.float(), eager.float()) < 5e-2


def test_decode_follows_the_window():
    worker = tiny_worker(device="cuda")
    seq = worker.kv.admit("long", [3])
    tokens = [3 + n % 5 for n in range(20)]
    for n, token in enumerate(tokens, start=1):
        worker.kv.extend(seq, 1)
        logits = worker.run([Chunk.newest(seq, [token])]).logits_NV
        assert worst_error(logits, dense_logits(worker.model.decoder, tokens[:n])) < 5e-3


@pytest.mark.parametrize("mode", [Mode.FULL, Mode.BREAKABLE, Mode.PIECEWISE])
def test_both_runners_are_clean_under_the_audit(mode):
    for report in audit_worker(tiny_worker(mode, device="cuda")):
        print(report.text())
        assert report.ok, report.text()


@pytest.mark.parametrize("mode", [Mode.FULL, Mode.BREAKABLE])
def test_experts_are_clean_under_the_audit(mode):
    """Padding goes to no expert, so what padded rows hold changes no other row."""
    worker = tiny_worker(mode, model=TINY_GPT_OSS, dtype=torch.bfloat16, device="cuda")
    for report in audit_worker(worker):
        assert report.ok, report.text()
