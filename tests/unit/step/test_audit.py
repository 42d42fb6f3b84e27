"""Each promise of the audit, broken in the engine's own graphs: decode, and steps over tokens of every mode."""

from __future__ import annotations

import pytest
import torch

from playhead.graph.registry import CudaGraphBufferRegistry
from playhead.graph.report import Check
from playhead.kv.plan import KVLimits
from playhead.step.audit import audit_worker
from playhead.step.forward import ModelStep
from playhead.testing.mutant import swapped
from playhead.testing.step_mutants import padded_rows_advanced
from playhead.testing.tiny_worker import tiny_worker
from playhead.types import Mode

MODES = [Mode.FULL, Mode.BREAKABLE, Mode.PIECEWISE]
LIMITS = KVLimits(max_context_tokens=4, max_running=2, chunk_tokens=2)
STRAY = torch.ones(1)
hidden = ModelStep.hidden


def touches_what_is_not_its_own():
    """Reads undeclared memory, a row past its own and the sink; writes a weight."""

    def fn(self, inputs, scope, phase, read=None):
        self.decoder.embedding_VM[:1].mul_(1.0)
        positions = inputs["positions"]
        one_more = torch.as_strided(positions, (positions.shape[0] + 1,), (1,))
        sink = self.layers[-1].k_cache_NSKD[0]
        return hidden(self, inputs, scope, phase, read) + STRAY + one_more.sum() * 0.0 + sink.sum()

    return fn


def remembers():
    """Leaves something in declared memory that its next run reads."""

    def fn(self, inputs, scope, phase, read=None):
        weight = self.decoder.embedding_VM[:1]
        weight.add_(1e-3)
        return hidden(self, inputs, scope, phase, read) + weight

    return fn


def counts_in_python():
    """Is scaled by how often Python has run it."""
    calls = []

    def fn(self, inputs, scope, phase, read=None):
        calls.append(1)
        return hidden(self, inputs, scope, phase, read) * len(calls)

    return fn


BROKEN = [
    (touches_what_is_not_its_own, {Check.OWNERSHIP, Check.WRITES, Check.EXTENT, Check.PADDED_VALUES}),
    (remembers, {Check.REPLAY_TWICE}),
    (counts_in_python, {Check.REPLAY_VS_EAGER, Check.TWO_CAPTURES}),
]


def broken_promises(mode):
    """What the audit finds, by runner: two of decode and one over tokens."""
    reports = audit_worker(tiny_worker(mode, limits=LIMITS))
    assert [report.name for report in reports] == ["decode, greedy", "decode, drawn", "prefill"]
    return [{finding.check for finding in report.findings} for report in reports]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("step", "checks"), BROKEN)
def test_every_runner_s_graphs_are_looked_at_by_the_check(step, checks, mode):
    with swapped(ModelStep, "hidden", step()):
        found = broken_promises(mode)
    assert [checks - each for each in found] == [set()] * 3


def test_padding_that_a_fill_does_not_write_is_found_in_every_runner():
    with swapped(CudaGraphBufferRegistry, "_reset_staged_tail", lambda self, slot, values, raw, left: None):
        found = broken_promises(Mode.FULL)
    assert [Check.TAILS in each for each in found] == [True] * 3


@pytest.mark.parametrize("mode", MODES)
def test_graphs_of_steps_that_report_on_prompts_are_audited_too(mode):
    """They are captured when the first request wants a report, and give rows of all tokens."""
    worker = tiny_worker(mode, limits=LIMITS)
    worker.whole_prefill = worker.make_whole_prefill()
    worker.whole_prefill.capture_all()
    reports = audit_worker(worker)
    assert [report.name for report in reports] == ["prefill, whole", "decode, greedy", "decode, drawn", "prefill"]
    assert [report.findings for report in reports] == [[]] * 4
    assert [bool(report.checked) for report in reports] == [True] * 4


def test_padded_rows_that_decode_moves_are_found():
    with padded_rows_advanced.apply():
        found = broken_promises(Mode.FULL)
    assert [Check.PADDED_ROWS in each for each in found] == [True, True, False]
