"""For all tests: one thread per process, and Triton interpreted where there is no GPU."""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # must stand before the first import of triton


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Tiny matmuls gain nothing from threads, and the test processes would get in each other's way."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
