"""Errors as values: each can be copied, and sent to another process."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

import playhead.serve.failures  # noqa: F401  its errors are sent too
from playhead.errors import PlayheadError
from playhead.outputs import CompletionOutput, FinishReason, RequestOutput


def kinds(kind: type[PlayheadError]) -> Iterator[type[PlayheadError]]:
    yield kind
    for narrower in kind.__subclasses__():
        yield from kinds(narrower)


def sent(value: object) -> Any:
    """The value as another process gets it."""
    return pickle.loads(pickle.dumps(value))  # noqa: S301  made here


def made(kind: type[PlayheadError]) -> PlayheadError:
    """An error of this kind."""
    wanted = list(inspect.signature(kind.__init__).parameters.values())[1:]
    named = [one for one in wanted if one.kind is one.POSITIONAL_OR_KEYWORD]
    values = [7 if one.annotation in ("int", "float") else one.name for one in named]
    return kind(*(values or ["a message"]))


@pytest.mark.parametrize("kind", sorted(set(kinds(PlayheadError)), key=lambda kind: kind.__name__))
def test_an_error_is_the_same_in_another_process(kind):
    error = made(kind)
    error.add_note("seen at noon")
    for other in (sent(error), copy.copy(error), copy.deepcopy(error)):
        assert (type(other), str(other), vars(other)) == (kind, str(error), vars(error))


def test_an_output_with_an_error_is_the_same_in_another_process():
    output = RequestOutput(
        request_id="r1",
        prompt=None,
        prompt_token_ids=[1],
        outputs=[CompletionOutput(index=0, text="", token_ids=[], finish_reason=FinishReason.ERROR)],
        finished=True,
        error=made(PlayheadError),
    )
    other = sent(output)
    assert (repr(other), str(other.error)) == (repr(output), str(output.error))
