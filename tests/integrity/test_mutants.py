"""K10: every known bug put back is noticed, and sound code is not accused."""

from __future__ import annotations

import pytest

from playhead.testing.mutants import PACKAGES, hunt, violations

MUTANTS = [(mutant, checkers) for _, mutants, checkers in PACKAGES for mutant in mutants]
CHECKERS = [checker for _, _, checkers in PACKAGES for checker in checkers]


@pytest.mark.parametrize("checker", CHECKERS, ids=lambda checker: checker.name)
def test_clean_code_is_silent(checker):
    assert violations(checker) == []


@pytest.mark.parametrize(("mutant", "checkers"), MUTANTS, ids=[mutant.name for mutant, _ in MUTANTS])
def test_a_known_bug_is_killed(mutant, checkers):
    assert hunt(mutant, checkers).checker is not None


@pytest.mark.parametrize(("mutant", "checkers"), MUTANTS[:1], ids=["first"])
def test_a_mutant_is_gone_afterwards(mutant, checkers):
    hunt(mutant, checkers)
    assert violations(checkers[0]) == []
