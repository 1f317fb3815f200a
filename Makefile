# Every target sets up what it needs: the only things assumed are Linux, make and a network that reaches the package
# registries. `make test` is what CI runs.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
VENV ?= .venv
CASES ?= cases
PY := $(VENV)/bin/python
# The environment is current when it was made from exactly these files.
STAMP := $(VENV)/.ready-$(shell cat pyproject.toml constraints.txt tools/setup-venv.sh | sha256sum | cut -c1-16)

.PHONY: help setup demo test test-fast test-deep coverage conformance lint format docs chart-repo bench cases clean

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1|\2/' | column -t -s '|'

setup: $(STAMP) ## the virtual environment in .venv

$(STAMP): pyproject.toml constraints.txt tools/setup-venv.sh
	@tools/setup-venv.sh $(VENV)
	@touch $@

demo: $(STAMP) ## a GPU cluster on this machine, without root or a GPU, and stories played on it (DEMO_KEEP=0: then end)
	@$(PY) -m kgpu lab demo

test: $(STAMP) ## every test; where root is available also those on a real Kubernetes cluster (TESTS=PATH: only these)
	@$(PY) -m tools.suite $(TESTS)

test-fast: $(STAMP) ## the tests that need no cluster (TESTS=PATH: only these)
	@$(PY) -m tools.suite --fast $(TESTS)

test-deep: $(STAMP) ## every test, with large random counts; takes hours
	@KGPU_DEEP=1 $(PY) -m tools.suite $(TESTS)

conformance: $(STAMP) ## Kubernetes' own conformance tests on both labs (root), and a table of what passed
	@$(PY) -m kgpu lab conformance $(ARGS)

coverage: $(STAMP) ## every test, and which lines and branches they reach: build/coverage/html
	@tools/coverage.sh $(PY)

lint: $(STAMP) ## style, types, layers, spelling
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@$(PY) -m mypy --config-file tests/mypy.ini
	@$(VENV)/bin/lint-imports --no-cache
	@$(PY) tools/circles.py
	@$(VENV)/bin/codespell src tests docs bench tools native README.md CHANGELOG.md

format: $(STAMP) ## let the formatter and the safe fixes do their work
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

docs: $(STAMP) ## the tables in docs/reference and docs/how-to and the pages of docs/answers, made from what the programs run on
	@$(PY) tools/reference_docs.py
	@$(PY) tools/answers.py
	@$(PY) tools/explanations.py

cases: $(STAMP) ## what the doctor says to reports that are kept in a folder (CASES=FOLDER)
	@$(PY) tools/replay_cases.py $(CASES)

chart-repo: $(STAMP) ## the chart as a repository for `helm repo add`, in dist/charts
	@$(PY) tools/chart_repo.py

bench: $(STAMP) ## the figures that kgpu is measured by, with this machine's name
	@$(PY) -m bench

clean: ## everything that was built here (caches under ~/.cache/kgpu stay)
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
