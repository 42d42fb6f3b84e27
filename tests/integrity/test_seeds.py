"""docs/seeds.md has a row, tests and a mutant for every requirement, and its rows are run honestly."""

from __future__ import annotations

import ast
from types import ModuleType

import pytest

import tests.contracts.runner_contract as contract
import tests.gpu.test_graph_contract as on_cuda
import tests.unit.graph.test_runner_contract as on_tape
from playhead.testing.seeds_checkers import CHECKOUT, NODE, SEEDS, SeedRow, run_tests, seed_rows
from playhead.testing.seeds_mutants import SEEDS_MUTANTS

NUM_REQUIREMENTS = {"S0": 4, "S1": 9, "S2": 2, "S3": 7, "S4": 5}
REQUIREMENTS = [f"{seed}.{i}" for seed, count in NUM_REQUIREMENTS.items() for i in range(1, count + 1)]
ROWS = seed_rows(SEEDS.read_text())
CONTRACT = "contracts/runner_contract.py"


def test_every_requirement_has_one_row():
    assert [row.requirement for row in ROWS] == REQUIREMENTS


@pytest.mark.parametrize("requirement", REQUIREMENTS)
def test_every_requirement_has_a_mutant_that_dies_by_its_row(requirement):
    mutants = [mutant for mutant in SEEDS_MUTANTS if mutant.killed_by == (requirement,)]
    assert mutants
    assert all(mutant.name.startswith(f"{requirement}: ") for mutant in mutants)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.requirement)
def test_every_row_names_tests_that_need_no_gpu(row):
    assert row.tests


def names_of(path: str) -> set[str]:
    """The tests and classes of a file, as `test` and `Class::test`, with those of a contract that it imports."""
    tree = ast.parse((CHECKOUT / "tests" / path).read_text())
    found = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
        if isinstance(node, ast.ImportFrom) and node.module == "tests.contracts.runner_contract":
            found |= names_of(CONTRACT)
    return found


@pytest.mark.parametrize("node", sorted(set(NODE.findall(SEEDS.read_text()))))
def test_every_test_that_a_row_names_exists(node):
    path, _, name = node.partition("::")
    assert name in names_of(path)


def test_the_runner_contract_runs_on_the_tape_and_on_cuda():
    def names(module: ModuleType) -> set[str]:
        return {name for name in vars(module) if name.startswith("test_")}

    assert names(contract)
    assert names(contract) <= names(on_tape)
    assert names(contract) <= names(on_cuda)


def test_rows_are_read_without_their_gpu_tests():
    text = "| S1.2 it is | `a.py` | `unit/a.py::test_b`, `gpu/a.py::test_c`, `unit/a.py::C::test_d` |\n| else | x | y |"
    assert seed_rows(text) == [SeedRow(requirement="S1.2", tests=("unit/a.py::test_b", "unit/a.py::C::test_d"))]


SAMPLES = """
import pytest
from playhead.errors import SlotError

def test_passes(): pass
def test_fails(): assert 1 == 2
def test_refuses(): raise SlotError("s", "f", "w", "x")
def test_is_not_refused():
    with pytest.raises(SlotError): pass
def test_crashes(): None.x
def test_skips(): pytest.skip()

@pytest.fixture
def broken(): assert False
def test_with_fixture(broken): pass
"""


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("test_passes", (1, 0, 0)),
        ("test_fails", (0, 1, 0)),
        ("test_refuses", (0, 1, 0)),
        ("test_is_not_refused", (0, 1, 0)),
        ("test_crashes", (0, 0, 1)),
        ("test_skips", (0, 0, 0)),
        ("test_with_fixture", (0, 0, 1)),
        ("test_gone", (0, 0, 1)),
    ],
)
def test_a_failed_assertion_or_an_error_of_ours_is_a_failure_and_the_rest_a_crash(tmp_path, name, counts):
    path = tmp_path / "test_samples.py"
    path.write_text(SAMPLES)
    outcomes = run_tests([f"{path}::{name}"])
    assert (outcomes.num_passed, len(outcomes.failures), len(outcomes.crashes)) == counts
