"""Refuse files over 500 lines and functions over 60: `python tools/check_sizes.py`."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
ROOT = Path(__file__).resolve().parent.parent


def oversized(path: Path) -> list[str]:
    """Every limit this file breaks, as `path:line: what`."""
    text = path.read_text()
    num_lines = text.count("\n")
    found = [f"{path}:1: {num_lines} lines, at most {MAX_FILE_LINES}"] if num_lines > MAX_FILE_LINES else []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                found.append(f"{path}:{node.lineno}: {node.name} has {length} lines, at most {MAX_FUNCTION_LINES}")
    return found


def main() -> int:
    paths = [p for folder in ("src", "tests", "bench", "tools") for p in sorted((ROOT / folder).rglob("*.py"))]
    found = [line for path in paths for line in oversized(path)]
    print(
        "\n".join(found) or f"sizes: {len(paths)} files within {MAX_FILE_LINES} lines, functions {MAX_FUNCTION_LINES}"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
