"""Rules of the house that a reader should not have to check."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[2] / "src" / "playhead"
FILES = sorted(SRC.rglob("*.py"))

FORBIDDEN_IMPORTS = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
FORBIDDEN_CALLS = {"eval", "exec", "torch.load", "yaml.load", "hasattr", "setattr", "inspect.signature"}
# torch hands out registered ops by attribute, and nothing else.
STRING_GETATTR_ALLOWED = {"op.py", "out_variants.py"}
# A mutant's patch is compared with what it replaces.
SIGNATURE_ALLOWED = {"mutant.py"}


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def violations(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            found += [f"line {node.lineno}: imports {n}" for n in names if n.split(".")[0] in FORBIDDEN_IMPORTS]
        if isinstance(node, ast.Call):
            name = dotted(node.func)
            if name in FORBIDDEN_CALLS and not (name == "inspect.signature" and path.name in SIGNATURE_ALLOWED):
                found.append(f"line {node.lineno}: calls {name}")
            if name == "getattr" and path.name not in STRING_GETATTR_ALLOWED:
                found.append(f"line {node.lineno}: calls getattr")
            if any(keyword.arg == "shell" for keyword in node.keywords):
                found.append(f"line {node.lineno}: a call with shell=")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_no_forbidden_construct(path):
    assert violations(path) == []


def test_the_rules_can_be_broken(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text("import pickle\nx = eval('1')\nhasattr(x, 'y')\nrun('ls', shell=True)\ngetattr(x, 'y')\n")
    assert len(violations(bad)) == 5
