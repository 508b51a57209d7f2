# make run   - set up .venv and run the default job: eight silos on a server and four workers
# make test  - set up .venv and run linters, type checks and tests, these in WORKERS processes
# make unit  - only the tests that start no process: a first answer in about a minute
PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS := 1

# a file's tests stay together, files that take longest come first (tests/conftest.py)
WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest -q -n $(WORKERS) --no-loadscope-reorder

.PHONY: run test unit slow lint clean
.DELETE_ON_ERROR:

run: .venv/installed
	$(BIN)/torchrun --nproc_per_node=5 -m fedtorch.main

test: lint
	$(PYTEST)

unit: .venv/installed
	$(PYTEST) -m 'not slow and not processes'

slow: .venv/installed
	$(BIN)/python -m pytest -q -m slow

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.PHONY: docs
docs: .venv/docs-installed ## the documentation as a site, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --config-file docs/site/mkdocs.yml

.venv/docs-installed: .venv/installed
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[docs]'
	touch $@

.venv/installed: setup.py constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv build *.egg-info .pytest_cache .mypy_cache .ruff_cache
