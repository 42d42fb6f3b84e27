"""Pieces as a GPU's compiler is given them."""

from __future__ import annotations

from playhead.testing.compiler_mutants import pieces_are_compiled


def test_a_step_over_tokens_is_compiled_in_pieces_for_all_sizes():
    assert pieces_are_compiled() == []
