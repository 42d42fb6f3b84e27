"""Tests and benches that run on a GPU alone call our functions as they are now, which no run without one shows."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from pkgutil import resolve_name

import pytest

from playhead.kernels.op import Op

pytest.importorskip("triton")

ROOT = Path(__file__).resolve().parents[3]
FILES = [
    *sorted((ROOT / "tests" / "gpu").glob("*.py")),
    *sorted(path for path in (ROOT / "bench").glob("*.py") if "cuda" in path.read_text()),
]


def ours(module: ast.Module) -> dict[str, Callable[..., object]]:
    """The functions, classes and ops that a file imports from the package, by the names it has for them."""
    found = {}
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("playhead"):
            names = {alias.asname or alias.name: alias.name for alias in node.names}
            values = {name: resolve_name(f"{node.module}:{own}") for name, own in names.items()}
            values = {name: one.reference if isinstance(one, Op) else one for name, one in values.items()}
            found |= {
                name: value for name, value in values.items() if inspect.isroutine(value) or inspect.isclass(value)
            }
    return found


def wrong_calls(module: ast.Module) -> Iterator[str]:
    """Each call of one of ours with arguments that it does not take. Of unpacked ones nothing is known."""
    known = ours(module)
    for node in ast.walk(module):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in known):
            continue
        signature = inspect.signature(known[node.func.id])
        given = [one for one in node.args if not isinstance(one, ast.Starred)]
        named = {one.arg: one for one in node.keywords if one.arg is not None}
        is_whole = len(given) == len(node.args) and len(named) == len(node.keywords)
        try:
            (signature.bind if is_whole else signature.bind_partial)(*given, **named)
        except TypeError as error:
            yield f"line {node.lineno}: {node.func.id}: {error}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_for_a_gpu_calls_our_functions_with_arguments_they_take(path):
    assert list(wrong_calls(ast.parse(path.read_text()))) == []


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        ("launch_decode(1, *rest, group_size=3)", "launch_decode: got an unexpected keyword argument 'group_size'"),
        ("qk_rope_write(1, 2)", "qk_rope_write: missing a required argument: 'v_TKE'"),
        ("norm_add_(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)", "norm_add_: too many positional arguments"),
    ],
)
def test_an_argument_that_is_gone_or_new_is_found(call, problem):
    source = f"""
from playhead.kernels.norm import norm_add_
from playhead.kernels.rope import qk_rope_write
from playhead.kernels.triton.decode import launch_decode
{call}
"""
    assert list(wrong_calls(ast.parse(source))) == [f"line 5: {problem}"]
