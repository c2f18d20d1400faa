# Everything a developer types. `make` alone lists the targets.
.DEFAULT_GOAL := help
.PHONY: help setup smoke test test-all test-long lint types unit bench clean
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

# A test that trains, opens a browser, uses Slurm or is slow is in test-all; one for each subsystem is marked smoke and in
# test; one marked long is in neither. tests/test_setup.py checks that every other test is in one of them, once.
SLOW := train or browser or slurm or slow
TOGETHER := --no-print-directory --keep-going --output-sync=target

test: browser slurm ## ruff, layers, mypy, the fast tests, and one real run of each subsystem
	@$(MAKE) $(TOGETHER) --jobs=3 unit pytest-smoke types lint

test-all: browser slurm compiler ## all other tests: training, cluster, browser; half an hour
	@$(MAKE) $(TOGETHER) --jobs=4 all-matrices all-commands all-slurm all-others

test-long: compiler ## the tests that are too slow for CI (marker long)
	$(PYTEST) -m long --durations 15

lint: setup ## ruff: rules and formatting; import-linter: the layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-logo

types: setup ## mypy, strict; the node side also as Python 3.10
	$(BIN)/mypy
	$(BIN)/mypy --python-version 3.10 harness/core harness/features harness/upstreams harness/faults harness/oracle harness/probe harness/runtime

unit: setup ## the fast tests: no training, no browser, no Slurm
	$(PYTEST) -m "not ($(SLOW) or smoke or long)" --durations 25

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
.PHONY: pytest-smoke all-matrices all-commands all-slurm all-others
pytest-smoke:
	$(PYTEST) -m smoke --durations 25

REST := ($(SLOW)) and not (smoke or long)
all-matrices:
	$(PYTEST) tests/matrices -m "$(REST)" --durations 25

all-commands:
	$(PYTEST) tests/cli tests/triage tests/campaign -m "$(REST)" --durations 25

all-slurm:
	$(PYTEST) tests/slurm -m "$(REST)" --durations 25

all-others:
	$(PYTEST) --ignore tests/matrices --ignore tests/cli --ignore tests/triage --ignore tests/campaign --ignore tests/slurm -m "$(REST)" --durations 25
