"""An interrupt at every place of the step in which a request ends: its last output is given out, and once."""

from __future__ import annotations

import os
from itertools import product

import pytest

from playhead.testing.fault_runs import interrupted_ends, leftovers
from playhead.testing.tiny_engine import tiny_engine

ALL = tuple(product(("detokenise", "commit", "finish", "read"), (False, True), (False, True)))
SLICE = [("detokenise", False, True), ("detokenise", True, False), ("finish", False, False), ("commit", False, False)]


@pytest.mark.parametrize(("site", "streams", "overlap"), ALL if os.environ.get("PLAYHEAD_FAULTS") == "full" else SLICE)
def test_an_interrupt_loses_no_end(site, streams, overlap):
    engine = tiny_engine(overlap=overlap)
    found, num_places = interrupted_ends(engine, site, streams=streams)
    assert found == []
    assert num_places > 20
    assert leftovers(engine) == []
