"""Every public name has an example, and every example gives what its docstring says."""

from __future__ import annotations

import doctest

import pytest

import playhead

PUBLIC = {name: playhead.__getattr__(name) for name in playhead.__all__ if name != "__version__"}


@pytest.fixture(scope="module")
def names():
    """What an example may use without making it: all public names, and an open LLM."""
    with playhead.LLM("embedded", max_model_len=128, max_num_seqs=2, graph_mode="eager") as llm:
        yield {**PUBLIC, "llm": llm}


def examples(name: str) -> list[doctest.DocTest]:
    """The examples of a public name and of its methods."""
    found = doctest.DocTestFinder(recurse=True).find(PUBLIC[name], name, globs={})
    return [test for test in found if test.examples]


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_has_an_example_that_runs(name, names):
    tests, said = examples(name), []
    assert tests
    for test in tests:
        test.globs = dict(names)
        doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=said.append)
    assert "".join(said) == ""
