"""The compiler reads every kernel that steps of public models launch.

The interpreter, by which kernels are tested, runs code that the compiler refuses.

`PLAYHEAD_KERNELS=full` has every model read in every way to run one, and compiled whole: `make test-kernels`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from playhead.models.families import FAMILIES
from tests.uninterpreted import output_of
from tests.unit.kernels.public_models import PUBLIC_MODELS, one_of_each_family

pytest.importorskip("triton")

READ_KERNELS = Path(__file__).with_name("read_kernels.py")
IS_CAMPAIGN = os.environ.get("PLAYHEAD_KERNELS") == "full"


def found_in(names, *options):
    return json.loads(output_of(READ_KERNELS, ",".join(names), *options))


def test_every_family_has_a_model():
    assert {PUBLIC_MODELS[name]["model_type"] for name in one_of_each_family()} == {one.model_type for one in FAMILIES}


def test_the_compiler_reads_every_kernel_of_a_model_of_each_family():
    """In one process: families share half of their kernels."""
    found = found_in(one_of_each_family())
    assert found["num_kernels"] > 150
    assert found["refused"] == {}


@pytest.mark.parametrize("option", ["--batch-invariant", "--rank", "--rank-exact"])
@pytest.mark.parametrize("name", PUBLIC_MODELS if IS_CAMPAIGN else ())
def test_the_compiler_reads_every_kernel_of_every_way_to_run_a_model(name, option):
    assert found_in([name], option)["refused"] == {}


@pytest.mark.parametrize("name", PUBLIC_MODELS if IS_CAMPAIGN else ())
def test_every_kernel_of_every_model_fits_a_hopper_gpu(name):
    found = found_in([name], "--whole")
    print(name, found)
    assert found["refused"] == {}
