"""A tiny model of every family on a GPU, by graphs, against plain attention over the whole prompt.

In bfloat16, whose products have kernels that float32 has not. Rounding moves the logits of these models by up to a
fifth; a wrong key, head or angle moves them by as much as they are.
"""

from __future__ import annotations

import pytest
import torch

from playhead.models.families import FAMILIES
from playhead.testing.tiny_worker import tiny_worker
from playhead.types import Mode
from tests.family_steps import LIMITS, Requests, config_of

TOLERANCE = 0.3


@pytest.mark.parametrize("model_type", [family.model_type for family in FAMILIES])
def test_every_familys_steps_give_the_logits_of_plain_attention(model_type):
    config = config_of(model_type)
    worker = tiny_worker(Mode.FULL, model=config, dtype=torch.bfloat16, device="cuda", page_size=16, limits=LIMITS)
    requests = Requests(worker)
    requests.take_steps()
    assert requests.differs(TOLERANCE) == []
