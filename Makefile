# `make help` lists the targets. They set up .venv where it is missing.
PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS := 1
unexport PYTHONDONTWRITEBYTECODE # every worker, rank and started program would compile what it imports

# The workers are forked once all tests are collected (tests/support/workers.py). A file's tests stay together, and files
# that start processes come first.
# More workers than cores: some tests wait, for SLURM, for limits of time, for ranks to meet. Those of `unit` never do.
WORKERS ?= 4
unit: WORKERS = 2
PYTEST = $(BIN)/python -m pytest -q --workers $(WORKERS)
LINT := $(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

.PHONY: run test unit slow gpu-api lint clean help
.DELETE_ON_ERROR:

run: .venv/installed ## the default job: eight clients on a server and four workers
	$(BIN)/torchrun --nproc_per_node=5 -m fedtorch.main

# The linters run beside the tests, on the core that is idle while these are collected.
test: .venv/installed ## linters, types, tests
	@($(LINT)) & linted=$$!; $(PYTEST); tested=$$?; \
	wait $$linted || { echo 'The linters found something: make lint shows it again.'; exit 1; }; exit $$tested

unit: .venv/installed ## the short tests, which start no process
	$(PYTEST) -m 'not slow and not processes and not long'

slow: .venv/installed ## the slow tests, and more examples of those that draw them
	FEDTORCH_TESTS=slow $(BIN)/python -m pytest -q -m 'slow or random'

lint: .venv/installed ## linters and types only
	@$(LINT)

# The wheel from the package index without the local ones, which may be for the CPU: some 5 GB with its libraries.
gpu-api: ## what is used of torch's CUDA build is in it; needs no GPU
	test -x build/gpu-api/bin/python || $(PYTHON) -m venv build/gpu-api
	PIP_CONFIG_FILE=/dev/null PIP_FIND_LINKS= build/gpu-api/bin/python -m pip install --quiet torch==$(shell sed -n 's/^torch==//p' constraints.txt) numpy
	build/gpu-api/bin/python tests/gpu/api.py

.PHONY: docs
docs: .venv/docs-installed ## the documentation as a site, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --config-file docs/site/mkdocs.yml

.venv/docs-installed: .venv/installed
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[docs]'
	touch $@

.venv/installed: setup.py pyproject.toml constraints.txt fedtorch/core/_kernels.c
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	$(BIN)/python -m compileall -q -j 0 fedtorch launchers tests/support # as pip does with what it copies
	touch $@

clean: ## remove .venv, builds and caches
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10
