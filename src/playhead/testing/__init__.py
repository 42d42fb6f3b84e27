"""Fakes, checkers and mutants that are shipped: what our tests use, yours can."""
