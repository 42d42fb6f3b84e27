"""Rules of the house that a reader should not have to check."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
SRC = TESTS.parent / "src" / "playhead"
FILES = sorted(SRC.rglob("*.py"))
TEST_FILES = sorted(TESTS.rglob("*.py"))

FORBIDDEN_IMPORTS = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "copyreg"}
# These send pickles from process to process; ours send msgpack and arrays. Only the hunt for mutants may.
PICKLING_IMPORTS = {"multiprocessing", "joblib"}
PICKLING_NAMES = {"ProcessPoolExecutor"}
PICKLING_ALLOWED = {"mutants.py"}
# asyncio.wait_for loses a cancellation that comes as the work ends, in Python 3.11. asyncio.timeout does not.
FORBIDDEN_CALLS = {
    "eval",
    "exec",
    "torch.load",
    "yaml.load",
    "hasattr",
    "setattr",
    "inspect.signature",
    "asyncio.wait_for",
}
# torch hands out registered ops by attribute, and nothing else.
STRING_GETATTR_ALLOWED = {"op.py", "out_variants.py"}
# A mutant's patch is compared with what it replaces.
SIGNATURE_ALLOWED = {"mutant.py"}


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def imports_of(node: ast.AST, packages: set[str]) -> list[str]:
    """What a statement imports of these packages."""
    if not isinstance(node, ast.Import | ast.ImportFrom):
        return []
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    return [f"line {node.lineno}: imports {name}" for name in names if name.split(".")[0] in packages]


def violations(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        found += imports_of(node, FORBIDDEN_IMPORTS)
        if path.name not in PICKLING_ALLOWED:
            found += imports_of(node, PICKLING_IMPORTS)
            if isinstance(node, ast.alias) and node.name in PICKLING_NAMES:
                found.append(f"line {node.lineno}: imports {node.name}")
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
    bad.write_text(
        "import pickle\nx = eval('1')\nhasattr(x, 'y')\nrun('ls', shell=True)\ngetattr(x, 'y')\n"
        "from multiprocessing.connection import Client\nfrom concurrent.futures import ProcessPoolExecutor\n"
        "asyncio.wait_for(x, 3)\n"
    )
    assert len(violations(bad)) == 8


CLOCKS = {"time", "timeit", "resource", "psutil"}
PROCESS_MEMORY = re.compile("Vm(HWM|RSS|Peak)|ru_max" + "rss|memory_" + "info")
CLOCK_KEYWORDS = {"timeout", "timeout_s", "deadline"}
LEAST_PATIENCE = {"PATIENCE_S": 120, "PATIENCE_MS": 120_000}
"""How long a test may wait for something that hangs. A verdict depends on it only if something hangs for minutes."""
TIME_IS_THE_SUBJECT = {"serve/openai_client/test_refusals.py"}  # a client's own time-out


def clock_reads(path: Path) -> list[str]:
    """Where a test could let the clock, or the process's memory, decide.

    Machines are shared: count operations and live buffers (`tests/counting.py`), or measure in `bench/`.
    """
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        found += imports_of(node, CLOCKS)
        if isinstance(node, ast.Call):
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            found += [
                f"line {node.lineno}: {name}="
                for name in sorted(CLOCK_KEYWORDS & given.keys())
                if not (isinstance(given[name], ast.Constant) and given[name].value is None)
                and not (isinstance(given[name], ast.Name) and given[name].id in LEAST_PATIENCE)
            ]
            if dotted(node.func).endswith(("wait_for", "perf_counter", "monotonic", "process_time")):
                found.append(f"line {node.lineno}: calls {dotted(node.func)}")
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            least = LEAST_PATIENCE.get(node.targets[0].id, 0)
            if least and not (isinstance(node.value, ast.Constant) and node.value.value >= least):
                found.append(f"line {node.lineno}: too little patience")
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and PROCESS_MEMORY.search(node.value):
            found.append(f"line {node.lineno}: reads the process's memory")
    return found


@pytest.mark.parametrize("path", TEST_FILES, ids=lambda path: str(path.relative_to(TESTS)))
def test_no_test_lets_the_clock_or_the_process_memory_decide(path):
    if str(path.relative_to(TESTS)) not in TIME_IS_THE_SUBJECT:
        assert clock_reads(path) == []


def test_a_test_that_reads_a_clock_is_found(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text(
        "import time\nfrom resource import getrusage\ntime.perf_counter()\nevent.wait(timeout=60)\n"
        "settings(deadline=None)\nasyncio.wait_for(x, 3)\nopen('/proc/self/status').read().find('Vm' 'RSS')\n"
        "PATIENCE_S = 5\nget(timeout=PATIENCE_S)\n"
    )
    assert len(clock_reads(bad)) == 7
