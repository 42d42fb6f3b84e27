"""A padded row points at the sink: at every fill, and at every step that runs without a fill."""

from __future__ import annotations

import pytest
import torch

from playhead.errors import GraphError, SlotError
from playhead.graph import (
    Check,
    CudaGraphBufferRegistry,
    GraphRunner,
    GraphSlot,
    PaddingPolicy,
    audit,
)
from playhead.testing.toy_runners import (
    LOCS,
    WRITE_BUCKET,
    advance_all,
    advance_live,
    locs_slot,
    write_runner,
    write_sample,
)


def broken(runner: GraphRunner) -> set[Check]:
    return {finding.check for finding in audit(runner, write_sample).findings}


def write_there(locs, live, cache):
    cache.index_fill_(0, locs, 1.0)


def write_beside(locs, live, cache):
    cache.index_fill_(0, locs + 1, 1.0)


def write_live_rows(locs, live, cache):
    cache.index_fill_(0, locs * live, 1.0)


def advance_all_and_write_live_rows(locs, live, cache):
    cache.index_fill_(0, locs * live, 1.0)
    locs.add_(1)


class TestDeclarations:
    @pytest.mark.parametrize("index", [LOCS, None])
    @pytest.mark.parametrize(
        "writer", [{"graph_writes": "advances"}, {"post_fill": lambda buffer, batch, ctx: None, "graph_writes": None}]
    )
    def test_padding_written_once_is_refused_where_anything_but_fills_writes(self, index, writer):
        with pytest.raises(SlotError, match="FILL_ONCE with graph_writes or post_fill"):
            locs_slot(padding_policy=PaddingPolicy.FILL_ONCE, index=index, **writer)

    def test_an_index_without_rows_is_refused(self):
        """Nobody could tell which of its numbers belong to padded rows."""
        with pytest.raises(SlotError, match="axis 'none' with index"):
            GraphSlot(
                name="locs",
                shape_fn=lambda bs, tokens: (bs,),
                dtype=torch.int64,
                axis="none",
                padding_policy=PaddingPolicy.KEEP_PAD,
                index=LOCS,
            )


class TestConsecutiveSteps:
    def test_a_graph_that_moves_its_padded_rows_too_is_found(self):
        """Each fill puts them back; a step without a fill writes a live location."""
        report = audit(write_runner(advance_all), write_sample)
        (finding,) = {(f.check, f.message) for f in report.findings if f.where == "raw 3"}
        assert finding[0] is Check.PADDED_ROWS
        assert "'locs'" in finding[1]
        assert "[1]" in finding[1]

    def test_the_finding_is_what_happens(self):
        """Locations 5, 6 and 7 are live; a padded row that walks through the cache comes to 1, then to 2."""
        runner = write_runner(advance_all)
        cache = runner.step.owned[0].tensors[0]
        cache.zero_()
        runner.run({"locs": torch.tensor([5, 6, 7])}, raw_bs=3, raw_num_tokens=3)
        runner.replay_advanced()
        runner.replay_advanced()
        assert cache[1:3].tolist() == [1, 1]

    def test_a_graph_that_moves_its_live_rows_alone_is_clean(self):
        report = audit(write_runner(advance_live), write_sample)
        assert report.ok, report.text()
        assert report.checked[Check.PADDED_ROWS] > 0

    def test_a_padded_row_that_writes_beside_the_sink_is_found(self):
        """Its location is the sink's; the place it writes is computed in the graph."""
        assert broken(write_runner(write_beside, locs_slot(graph_writes=None))) == {Check.PADDED_ROWS}

    def test_full_batches_have_no_padded_rows_to_look_at(self):
        report = audit(write_runner(advance_live), write_sample, raws=(WRITE_BUCKET,))
        assert report.checked[Check.PADDED_ROWS] == 0

    def test_an_audit_that_runs_consecutive_steps_puts_memory_back(self):
        runner = write_runner(advance_live)
        cache = runner.step.owned[0].tensors[0].normal_()
        before = cache.clone()
        audit(runner, write_sample)
        assert torch.equal(cache, before)


class TestFills:
    def test_a_batch_that_shrinks_leaves_the_locations_of_the_others_alone(self):
        """Locations on the device already: the tail of their slot is reset by the fill, not by a packed copy."""
        runner = write_runner(write_there, locs_slot(graph_writes=None))
        cache = runner.step.owned[0].tensors[0]
        runner.run({"locs": torch.tensor([5, 6, 7])}, raw_bs=3, raw_num_tokens=3)
        cache[6:8] = 77  # they belong to somebody else now
        runner.run({"locs": torch.tensor([5])}, raw_bs=1, raw_num_tokens=1)
        assert cache[6:8].tolist() == [77, 77]

    def test_a_hook_that_points_padded_rows_at_live_locations_is_found(self):
        def hook(buffer, batch, ctx):
            buffer[ctx.raw_bs :] = 7

        assert Check.TAILS in broken(write_runner(write_live_rows, locs_slot(post_fill=hook)))

    def test_a_tail_that_only_poison_resets_is_found(self, monkeypatch):
        """Poison marks every row as dirty. A fill after a replay has no such help."""

        def only_after_poison(self, entry, ctx):
            if entry.dirty_rows == entry.num_rows:
                entry.slot.rows(ctx.raw("bs"), ctx.padded("bs")).fill_(entry.slot.pad_value)
            entry.dirty_rows = 0

        monkeypatch.setattr(CudaGraphBufferRegistry, "_reset_tail", only_after_poison)
        slot = locs_slot(index=None)
        assert broken(write_runner(advance_all_and_write_live_rows, slot)) == {Check.TAILS}


class TestRunAgain:
    def test_slots_that_were_filled_since_are_refused(self):
        """Two runners over one registry: what the other filled is not the next step of this one."""
        runner = write_runner(advance_live)
        runner.run({"locs": torch.tensor([5, 6])}, raw_bs=2, raw_num_tokens=2)
        runner.replay_advanced()
        runner.registry.fill_from(
            {"locs": torch.tensor([9])}, runner.context(raw_bs=1, raw_num_tokens=1, bucket=WRITE_BUCKET)
        )
        with pytest.raises(GraphError, match="filled since"):
            runner.replay_advanced()

    def test_a_runner_that_has_not_run_has_no_next_step(self):
        with pytest.raises(GraphError, match="replay_advanced without a step before"):
            write_runner(advance_live).replay_advanced()
