"""The public face: what `import playhead` gives, and what it does not import."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import playhead
from playhead.errors import AbsentFeature, PlayheadError

PROBE = """
import json, sys
before = set(sys.modules)
import playhead
alone = set(sys.modules) - before
from playhead import EngineConfig, Logprob, PlayheadError, RequestOutput, SamplingParams, TextPrompt, TokensPrompt
from playhead.engine.config import ENGINE_SETTINGS
from playhead.sampling_params import SAMPLING_SETTINGS
print(json.dumps([sorted(alone), sorted(sys.modules)]))
"""
HEAVY = {"torch", "numpy", "safetensors", "tokenizers", "jinja2", "typer", "rich", "triton", "asyncio"}


def test_importing_the_package_imports_nothing_heavy():
    """Settings, parameters and outputs can be declared, and flags be made of them, before torch is there."""
    ran = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    alone, with_declarations = json.loads(ran.stdout)
    assert {name for name in alone if name.startswith("playhead")} == {"playhead", "playhead.errors"}
    assert len(alone) < 40
    assert HEAVY.isdisjoint(with_declarations)


@pytest.mark.parametrize("name", playhead.__all__)
def test_every_public_name_can_be_imported_and_is_listed(name):
    assert vars(playhead).get(name) is not None or playhead.__getattr__(name) is not None
    assert name in dir(playhead)


def test_every_public_name_but_the_version_has_a_home():
    assert {*playhead.__all__} == {*playhead._HOMES, "__version__"}


@pytest.mark.parametrize("name", playhead._ABSENT)
def test_a_name_that_is_not_here_is_no_public_one(name):
    assert name not in playhead.__all__
    with pytest.raises(AbsentFeature, match=rf"playhead\.{name}: \w.*\.$"):
        playhead.__getattr__(name)


def test_a_name_of_another_engine_says_why_it_is_not_here():
    with pytest.raises(ImportError, match="BeamSearchParams: Playhead has no beam search") as refusal:
        from playhead import BeamSearchParams  # noqa: F401
    assert isinstance(refusal.value, AbsentFeature | PlayheadError)
    with pytest.raises(ImportError, match="cannot import name 'Nonsense'"):
        from playhead import Nonsense  # noqa: F401
    with pytest.raises(AbsentFeature, match=r"sampling_params\.BeamSearchParams: There is no beam search"):
        from playhead.sampling_params import BeamSearchParams as _
    with pytest.raises(AbsentFeature, match="It is called StructuredOutputs here"):
        from playhead.sampling_params import GuidedDecodingParams  # noqa: F401
    with pytest.raises(ImportError, match="cannot import name 'Nonsense'"):
        from playhead.sampling_params import Nonsense as _  # noqa: F401
