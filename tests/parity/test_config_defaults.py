"""A config that leaves keys out means what transformers takes it to mean."""

from __future__ import annotations

import pytest
import transformers

from playhead.models.build import spec_from_config
from playhead.models.families import FAMILIES


@pytest.mark.parametrize("model_type", [family.model_type for family in FAMILIES if family.text_key is None])
def test_an_empty_config_is_the_references_default(model_type):
    config = transformers.AutoConfig.for_model(model_type)
    assert spec_from_config({"model_type": model_type}) == spec_from_config(config.to_dict())


def test_the_text_part_of_gemma3_is_the_references_default():
    config = transformers.Gemma3Config()
    ours = spec_from_config({"model_type": "gemma3", "text_config": {}})
    assert ours == spec_from_config({**config.to_dict(), "model_type": "gemma3"})
