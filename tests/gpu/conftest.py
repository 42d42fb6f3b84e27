"""Tests in this folder need a CUDA device and say so when there is none."""

from __future__ import annotations

import pytest
import torch


def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/gpu" in str(item.path):
            item.add_marker(pytest.mark.gpu)
            # Inductor warns about torch.jit, which it uses itself, and about fp32 matmuls, which are meant here.
            item.add_marker(pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning"))
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))
