"""The runner contract on the CPU."""

from __future__ import annotations

import pytest

from playhead.graph import EagerBackend, TapeBackend
from tests.contracts.runner_contract import *  # noqa: F403


@pytest.fixture(params=[TapeBackend, EagerBackend])
def backend(request):
    return request.param()
