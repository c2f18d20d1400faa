# Everything a developer types. `make` alone lists the targets.
.DEFAULT_GOAL := help
.PHONY: help setup smoke test test-long lint types unit clean
BIN := .venv/bin
# pytest rewrites every assertion anew unless it may keep bytecode: half of its start. What tests start is as it was:
# tests/conftest.py puts the variable back.
PYTEST := env -u PYTHONDONTWRITEBYTECODE TESTED_PYTHONDONTWRITEBYTECODE="$$PYTHONDONTWRITEBYTECODE" $(BIN)/pytest

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

setup: ## make .venv with everything the other targets need (again: a moment)
	@scripts/setup

smoke: setup ## run matrices/smoke.yaml on this machine and write its report
	$(BIN)/harness run matrices/smoke.yaml

test: browser slurm compiler ## all checks: ruff, mypy, pytest
	@$(MAKE) --no-print-directory --keep-going --jobs=3 --output-sync=target \
		pytest-training pytest-slurm lint types pytest-rest

test-long: test ## these, and the tests that take longer than CI should (marker long)
	$(PYTEST) -m long --durations 15

lint: setup ## ruff: rules and formatting
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: setup ## mypy, strict; the node side also as Python 3.10
	$(BIN)/mypy
	$(BIN)/mypy --python-version 3.10 harness/core harness/node

unit: setup ## the fast tests: no training, no browser, no Slurm
	$(PYTEST) -m "not train and not browser and not slurm"

clean: ## remove .venv and caches; reports stay
	rm -rf .venv .venv-tools build .mypy_cache .ruff_cache .pytest_cache .hypothesis dist

.PHONY: browser slurm compiler
browser:
	@scripts/setup --browser

slurm: browser # one after the other: both write to the same place
	@scripts/setup --slurm

compiler: slurm
	@scripts/setup --compiler

# Three lanes on two cores: tests on a cluster mostly wait. What each printed comes when it has ended. Together they hold
# every test that is not long: tests/test_setup.py.
.PHONY: pytest-training pytest-slurm pytest-rest
pytest-training:
	$(PYTEST) --ignore tests/slurm -m "train and not (bisect or long)" --durations 25

pytest-slurm:
	$(PYTEST) tests/slurm -m "not long" --durations 25

pytest-rest:
	$(PYTEST) --ignore tests/slurm -m "(bisect or not train) and not long" --durations 25
