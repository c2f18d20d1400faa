# Everything a developer types. `make` alone lists the targets.
.DEFAULT_GOAL := help
.PHONY: help setup smoke test test-long lint types unit bench clean
BIN := .venv/bin
# Without bytecode caching, rewriting assertions takes half of pytest's startup. For the processes that tests start,
# tests/conftest.py restores the variable.
PYTEST := env -u PYTHONDONTWRITEBYTECODE TESTED_PYTHONDONTWRITEBYTECODE="$$PYTHONDONTWRITEBYTECODE" $(BIN)/pytest

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

setup: ## make .venv with everything the other targets need; a moment once it exists
	@scripts/setup

smoke: setup ## run matrices/smoke.yaml on this machine and write its report
	$(BIN)/harness run matrices/smoke.yaml

test: browser slurm compiler ## all checks: ruff, mypy, pytest
	@$(MAKE) --no-print-directory --keep-going --jobs=3 --output-sync=target \
		pytest-matrices pytest-slurm pytest-rest pytest-app pytest-node pytest-searches pytest-benchmarks lint types

test-long: test ## the same, and the tests that are too slow for CI (marker long)
	$(PYTEST) -m long --durations 15

lint: setup ## ruff: rules and formatting; import-linter: the layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-logo

types: setup ## mypy, strict; the node side also as Python 3.10
	$(BIN)/mypy
	$(BIN)/mypy --python-version 3.10 harness/core harness/node harness/oracle

unit: setup ## the fast tests: no training, no browser, no Slurm
	$(PYTEST) -m "not train and not browser and not slurm"

bench: setup ## every benchmark but the soaks, an hour and a half on two quiet cores; writes docs/generated/benchmarks.md
	$(BIN)/python benchmarks/all.py $(BENCH)

clean: ## remove .venv and caches; reports stay
	rm -rf .venv .venv-tools build .mypy_cache .ruff_cache .import_linter_cache .pytest_cache .hypothesis dist

.PHONY: browser slurm compiler
browser:
	@scripts/setup --browser

slurm: browser # in sequence: both may install packages
	@scripts/setup --slurm

compiler: slurm
	@scripts/setup --compiler

# More jobs than cores, since cluster tests mostly wait; the longest begin first. Each prints its output when it ends.
# tests/test_setup.py checks that together they run every test that is not long.
.PHONY: pytest-app pytest-benchmarks pytest-matrices pytest-node pytest-rest pytest-searches pytest-slurm
pytest-app:
	$(PYTEST) tests/app --ignore tests/app/matrices --ignore tests/app/bisect --ignore tests/app/shrink -m "not long" --durations 25

pytest-searches:
	$(PYTEST) tests/app/bisect tests/app/shrink -m "not long" --durations 25

pytest-matrices:
	$(PYTEST) tests/app/matrices -m "not long" --durations 25

pytest-slurm:
	$(PYTEST) tests/slurm -m "not long" --durations 25

pytest-node:
	$(PYTEST) tests/node -m "not long" --durations 25

pytest-benchmarks:
	$(PYTEST) tests/benchmarks tests/browser -m "not long" --durations 25

pytest-rest:
	$(PYTEST) --ignore tests/app --ignore tests/slurm --ignore tests/benchmarks --ignore tests/browser --ignore tests/node -m "not long" --durations 25
