# Every target creates .venv when it is missing or older than what it is made from, and reuses it otherwise.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: demo test check lint format mutants clean

demo: $(STAMP)
	$(BIN)/playhead demo

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 tests

check: lint test mutants

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/check_sizes.py

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

mutants: $(STAMP)
	$(BIN)/python -m playhead.testing.mutants

clean:
	rm -rf .venv build dist

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,bench]"
	touch $(STAMP)
