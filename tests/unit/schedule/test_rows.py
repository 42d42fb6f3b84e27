"""What is in a row, as the host knows it: nothing of a former sequence counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from playhead.kv.cache import HybridKVCache
from playhead.sampling_params import SamplingKind
from playhead.schedule.request import Chunk
from playhead.schedule.rows import DecodeSlots, DeviceRows
from playhead.schedule.step_plan import StepPlan
from playhead.testing.kv_rules import small_layer, small_plan

GREEDY, DRAWN = SamplingKind.GREEDY, SamplingKind.DRAWN


@pytest.fixture
def kv() -> HybridKVCache:
    return HybridKVCache(small_plan([small_layer(None)], page_size=4, num_slabs=20, max_running=2))


def chunk(kv: HybridKVCache, name: str, num_tokens: int = 3) -> Chunk:
    """A sequence of so many tokens that decodes: its newest token is on the device."""
    seq = kv.admit(name, [1] * num_tokens)
    kv.extend(seq, num_tokens)
    return Chunk.newest(seq, [-seq.row])


def next_user(kv: HybridKVCache, former: Chunk) -> Chunk:
    """The request that gets a former one's row."""
    kv.abort(former.seq)
    later = chunk(kv, f"after {former.request.id}")
    assert later.seq.row == former.seq.row
    return later


def one_further(kv: HybridKVCache, chunks: list[Chunk]) -> list[Chunk]:
    for one in chunks:
        kv.extend(one.seq, 1)
    return [Chunk.newest(one.seq, [-one.seq.row]) for one in chunks]


def after_decode(kv: HybridKVCache, chunks: list[Chunk], kind: SamplingKind = GREEDY) -> DecodeSlots:
    rows = np.array([one.seq.row for one in chunks], dtype=np.int32)
    return DecodeSlots.after_launch(StepPlan.of(chunks), kind, num_fills=7, num_places=kv.num_places_of(rows), box=2)


def test_a_row_that_is_used_again_has_no_newest_token_and_is_unknown_to_the_sampler(kv):
    rows, first = DeviceRows(), chunk(kv, "first")
    assert not rows.has_newest(first.seq)
    rows.put_newest([first])
    rows.tell_sampler(first.seq)
    assert rows.has_newest(first.seq)
    assert rows.unknown_to_sampler([first]) == []
    second = next_user(kv, first)
    assert not rows.has_newest(second.seq)
    assert rows.unknown_to_sampler([second]) == [second]


def test_a_chunk_that_samples_nothing_leaves_no_newest_token(kv):
    rows, one = DeviceRows(), chunk(kv, "one")
    rows.put_newest([replace(one, samples=False)])
    assert not rows.has_newest(one.seq)


def test_a_step_that_did_not_run_leaves_the_newest_tokens_as_they_were(kv):
    rows, decoding, prompt = DeviceRows(), chunk(kv, "decoding"), chunk(kv, "prompt")
    prompt = replace(prompt, tokens=(1, 1, 1))
    rows.put_newest([decoding])
    rows.put_newest([decoding, prompt])
    for one in (decoding, prompt):
        rows.take_back_newest(one)
    assert (rows.has_newest(decoding.seq), rows.has_newest(prompt.seq)) == (True, False)


def test_taking_back_a_former_sequence_leaves_the_newest_token_of_the_next_one(kv):
    rows, first = DeviceRows(), chunk(kv, "first")
    second = next_user(kv, first)
    rows.put_newest([second])
    rows.take_back_newest(replace(first, tokens=(1,)))
    assert rows.has_newest(second.seq)


class TestDecodeSlots:
    """The slots of decode hold the next step, or they must be filled."""

    def can(
        self, rows: DeviceRows, chunks: list[Chunk], kind: SamplingKind = GREEDY, num_fills: int = 7, box: int = 2
    ) -> bool:
        return rows.can_replay_in_place(StepPlan.of(chunks), kind, num_fills=num_fills, box=box)

    def test_they_hold_the_same_sequences_one_token_further(self, kv):
        rows, chunks = DeviceRows(), [chunk(kv, "one"), chunk(kv, "two")]
        assert not self.can(rows, chunks)
        rows.decode_slots = after_decode(kv, chunks)
        further = one_further(kv, chunks)
        assert self.can(rows, further)
        assert not self.can(rows, further, kind=DRAWN)
        assert not self.can(rows, further, num_fills=8)
        assert not self.can(rows, further, box=3)
        assert not self.can(rows, further[::-1])
        assert not self.can(rows, further[:1])
        assert not self.can(rows, chunks)

    def test_they_do_not_hold_another_sequence_of_the_same_row_and_length(self, kv):
        rows, first = DeviceRows(), chunk(kv, "first", num_tokens=2)
        rows.decode_slots = after_decode(kv, [first])
        assert not self.can(rows, [next_user(kv, first)])

    def test_they_do_not_hold_a_place_on_a_page_that_came_later(self, kv):
        rows, full = DeviceRows(), chunk(kv, "full", num_tokens=4)
        rows.decode_slots = after_decode(kv, [full])
        assert not self.can(rows, one_further(kv, [full]))

    def test_they_do_not_hold_a_token_that_the_host_chose(self, kv):
        rows, one = DeviceRows(), chunk(kv, "one")
        rows.decode_slots = after_decode(kv, [one])
        (further,) = one_further(kv, [one])
        assert not self.can(rows, [replace(further, tokens=(5,))])
