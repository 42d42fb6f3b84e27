"""Parts that are measured in whole steps: where they take the place of the rule's."""

from __future__ import annotations

from dataclasses import replace

import torch

from bench.parts import leaving
from playhead.attention.triton import TritonBackend
from tests.unit.attention.scenes import SceneSpec, make_scene


def test_a_layer_leaves_as_many_parts_as_are_measured_if_its_reader_merges_them():
    layer = replace(make_scene(SceneSpec(seq_lens=(4,)), seed=0).layer, reader_merges=True)
    backend = TritonBackend(torch.zeros(3, 4, dtype=torch.int32), [layer], max_bs=2)
    assert backend.parts_left(layer, 1) == 0
    with leaving(3):
        assert backend.parts_left(layer, 1) == 3
        assert backend.parts_left(layer, 2) == 0
        assert backend.parts_left(replace(layer, reader_merges=False), 1) == 0
