"""The compiler reads every kernel that steps of public models launch.

The interpreter, by which kernels are tested, runs code that the compiler refuses.

`PLAYHEAD_KERNELS=full` compiles them whole, for every model and way to run one: `make test-kernels`.
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


@pytest.mark.parametrize("half", [0, 1])
def test_the_compiler_reads_every_kernel_of_a_model_of_each_family(half):
    found = found_in(one_of_each_family()[half::2])
    assert found["num_kernels"] > 100
    assert found["refused"] == {}


@pytest.mark.parametrize("name", PUBLIC_MODELS if IS_CAMPAIGN else ())
@pytest.mark.parametrize("option", ["", "--batch-invariant", "--rank", "--rank-exact"])
def test_every_kernel_of_every_model_fits_a_hopper_gpu(name, option):
    found = found_in([name], "--whole", *option.split())
    print(name, option, found)
    assert found["refused"] == {}
