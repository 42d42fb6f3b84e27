"""Playhead: an inference engine that replays captured graphs over declared inputs.

from playhead import LLM, SamplingParams

with LLM("embedded") as llm:
    print(llm.generate("The whale", SamplingParams(max_tokens=20))[0].outputs[0].text)

Importing `playhead` imports nothing else: each name below brings its module, and torch with it, when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from playhead.errors import NO_POOLING, AbsentFeature

if TYPE_CHECKING:
    from playhead.engine.async_engine import AsyncEngine, AsyncEngineArgs
    from playhead.engine.config import EngineConfig
    from playhead.errors import PlayheadError
    from playhead.inputs import TextPrompt, TokensPrompt
    from playhead.llm import LLM
    from playhead.outputs import CompletionOutput, Logprob, RequestOutput
    from playhead.sampling_params import SamplingParams
    from playhead.structured_outputs import StructuredOutputs

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "AsyncEngine",
    "AsyncEngineArgs",
    "CompletionOutput",
    "EngineConfig",
    "Logprob",
    "PlayheadError",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputs",
    "TextPrompt",
    "TokensPrompt",
    "__version__",
]

_HOMES = {
    "LLM": "playhead.llm",
    "AsyncEngine": "playhead.engine.async_engine",
    "AsyncEngineArgs": "playhead.engine.async_engine",
    "CompletionOutput": "playhead.outputs",
    "EngineConfig": "playhead.engine.config",
    "Logprob": "playhead.outputs",
    "PlayheadError": "playhead.errors",
    "RequestOutput": "playhead.outputs",
    "SamplingParams": "playhead.sampling_params",
    "StructuredOutputs": "playhead.structured_outputs",
    "TextPrompt": "playhead.inputs",
    "TokensPrompt": "playhead.inputs",
}
"""The module of every public name."""

_ABSENT = {
    "AsyncLLMEngine": "it is called AsyncEngine here: from playhead import AsyncEngine as AsyncLLMEngine.",
    "BeamSearchParams": "Playhead has no beam search: SamplingParams(n=...) draws several samples.",
    "ClassificationRequestOutput": NO_POOLING,
    "EmbeddingRequestOutput": NO_POOLING,
    "EngineArgs": "give settings to LLM as keywords, or as an EngineConfig.",
    "LLMEngine": "LLM.generate and LLM.stream run the steps; AsyncEngine serves requests as they come.",
    "ModelRegistry": "Playhead never runs code of a checkpoint: docs/extend.md shows how a family is added.",
    "PoolingParams": NO_POOLING,
    "PoolingRequestOutput": NO_POOLING,
    "ScoringRequestOutput": NO_POOLING,
}
"""Names of vLLM that a script may ask for, and why they are not here."""


def __getattr__(name: str) -> object:
    """A public name, imported when it is first asked for."""
    if name in _ABSENT:
        raise AbsentFeature(f"playhead.{name}", _ABSENT[name])
    if name not in _HOMES:
        raise AttributeError(f"module 'playhead' has no attribute {name!r}")
    value: object = vars(import_module(_HOMES[name]))[name]
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
