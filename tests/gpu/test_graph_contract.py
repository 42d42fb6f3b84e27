"""The runner contract on CUDA graphs."""

from __future__ import annotations

import pytest

from playhead.graph import CudaBackend
from tests.contracts.runner_contract import *  # noqa: F403


@pytest.fixture
def backend():
    return CudaBackend()
