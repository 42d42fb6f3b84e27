"""A config with edited keys gives transformers' logits, or an error that names the key.

`PLAYHEAD_PARITY_EXAMPLES` sets how many configs of each family are tried; `PLAYHEAD_PARITY_SEED` which ones.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter

import pytest

from playhead.models.families import FAMILIES
from tests.parity.edited_configs import BASES, compare, edited_configs, quiet_transformers

NUM_EXAMPLES = int(os.environ.get("PLAYHEAD_PARITY_EXAMPLES", "64"))
SEED = int(os.environ.get("PLAYHEAD_PARITY_SEED", "0"))


@pytest.fixture(autouse=True)
def quiet():
    quiet_transformers()


def test_every_family_has_a_config_to_edit():
    assert set(BASES) == {family.model_type for family in FAMILIES}


@pytest.mark.parametrize("model_type", BASES)
def test_edited_configs_give_transformers_logits_or_name_the_key(model_type, tmp_path):
    outcomes = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers warns about configs that it goes on to run
        for case in edited_configs(model_type, NUM_EXAMPLES, SEED):
            outcomes.append(compare(case, tmp_path))
    words = Counter(outcome.word for outcome in outcomes)
    print(f"\n{model_type}: {dict(words)}")
    complaints = [outcome.complaint for outcome in outcomes if outcome.complaint is not None]
    assert not complaints, f"{len(complaints)} of {len(outcomes)}:\n" + "\n".join(complaints)
    # Configs that nothing can be said about would make this test pass for ever.
    assert words["equal"] > len(outcomes) // 4
