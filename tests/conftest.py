"""For all tests: one thread per process, no clock in a verdict, and Triton interpreted where there is no GPU."""

from __future__ import annotations

import gc
import os
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # for processes that a test starts; see `_one_thread`
os.environ.setdefault("PLAYHEAD_STRICT_LEDGER", "1")  # a violation fails the test in whose step it is found

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # must stand before the first import of triton
    with suppress(ImportError):
        from tests.quick_triton import be_quick

        be_quick()

# Machines are shared: an example that takes long says nothing about the code. The suite tries the same examples at
# every run, so that a commit is green or red; PLAYHEAD_EXPLORE=1 looks for new ones.
settings.register_profile("playhead", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.register_profile("explore", settings.get_profile("playhead"), derandomize=False)
settings.load_profile("explore" if os.environ.get("PLAYHEAD_EXPLORE") else "playhead")


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Tiny matmuls gain nothing from threads, and the test processes would get in each other's way."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session", autouse=True)
def _captures_collect_young_garbage():
    """A worker and an engine collect all garbage before they capture, which is room on a GPU. Here it would be no room,
    and half a second each: a process of tests has imported whatever a test of any module needs.
    """
    from playhead.engine import still
    from playhead.step import worker

    young = SimpleNamespace(**vars(gc) | {"collect": lambda: gc.collect(1)})
    with pytest.MonkeyPatch.context() as patch:
        if not torch.cuda.is_available():
            patch.setattr(worker, "gc", young)
            patch.setattr(still, "gc", young)
        yield


@pytest.fixture(autouse=True)
def _numpy_goes_on_to_warn():
    """A test that leaves numpy silent would fail another one, which waits for a warning, in some order of all."""
    before = np.geterr()
    yield
    after = np.geterr()
    np.seterr(**before)
    assert after == before


@pytest.fixture(scope="module", autouse=True)
def _nothing_stays_frozen():
    """An engine that captured its graphs, and that nobody closed, hides its objects from the collector for good."""
    before = gc.get_freeze_count()
    yield
    assert before or not gc.get_freeze_count(), "an engine that captured all graphs was not closed"
