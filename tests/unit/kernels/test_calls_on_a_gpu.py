"""Tests and benches that run on a GPU alone call our functions by names that exist, which no run without one shows."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from pkgutil import resolve_name

import pytest

pytest.importorskip("triton")

ROOT = Path(__file__).resolve().parents[3]
FILES = [
    *sorted((ROOT / "tests" / "gpu").glob("*.py")),
    *(ROOT / "bench" / f"{n}.py" for n in ("attention", "projections")),
]


def ours(module: ast.Module) -> dict[str, Callable[..., object]]:
    """The functions and classes that a file imports from the package, by the names it has for them."""
    found = {}
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("playhead"):
            names = {alias.asname or alias.name: alias.name for alias in node.names}
            values = {name: resolve_name(f"{node.module}:{own}") for name, own in names.items()}
            found |= {
                name: value for name, value in values.items() if inspect.isroutine(value) or inspect.isclass(value)
            }
    return found


def wrong_keywords(module: ast.Module) -> Iterator[str]:
    """Each call of one of ours with a keyword that it does not take."""
    known = ours(module)
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in known:
            taken = inspect.signature(known[node.func.id]).parameters
            takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in taken.values())
            for keyword in node.keywords:
                if keyword.arg is not None and keyword.arg not in taken and not takes_any:
                    yield f"line {node.lineno}: {node.func.id}({keyword.arg}=)"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_for_a_gpu_calls_our_functions_by_keywords_they_take(path):
    assert list(wrong_keywords(ast.parse(path.read_text()))) == []


def test_a_keyword_that_is_gone_is_found():
    source = "from playhead.kernels.triton.decode import launch_decode\nlaunch_decode(1, group_size=3)\n"
    assert list(wrong_keywords(ast.parse(source))) == ["line 2: launch_decode(group_size=)"]
