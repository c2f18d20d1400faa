# Everything a developer types. `make` alone lists the targets.
.DEFAULT_GOAL := help
.PHONY: help setup smoke test test-long lint types unit clean
BIN := .venv/bin

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

setup: ## make .venv with everything the other targets need (again: a moment)
	@scripts/setup

smoke: setup ## run matrices/smoke.yaml on this machine and write its report
	$(BIN)/harness run matrices/smoke.yaml

test: browser slurm compiler lint types ## all checks: ruff, mypy, pytest
	@$(MAKE) --no-print-directory --keep-going --jobs=2 --output-sync=target pytest-training pytest-rest

test-long: test ## these, and the tests that take longer than CI should (marker long)
	$(BIN)/pytest -m long --durations 15

lint: setup ## ruff: rules and formatting
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: setup ## mypy, strict; the node side also as Python 3.10
	$(BIN)/mypy
	$(BIN)/mypy --python-version 3.10 harness/core harness/node

unit: setup ## the fast tests: no training, no browser, no Slurm
	$(BIN)/pytest -m "not train and not browser and not slurm"

clean: ## remove .venv and caches; reports stay
	rm -rf .venv .venv-tools build .mypy_cache .ruff_cache .pytest_cache .hypothesis dist

.PHONY: browser slurm compiler
browser:
	@scripts/setup --browser

slurm: browser # one after the other: both write to the same place
	@scripts/setup --slurm

compiler: slurm
	@scripts/setup --compiler

# Side by side, in two halves of about equal length: tests on a cluster mostly wait, so the fast ones, and searches for
# guilty commits, go with them. What each printed comes when it has ended.
.PHONY: pytest-training pytest-rest
pytest-training:
	$(BIN)/pytest -m "(train or browser) and not (slurm or bisect or long)" --durations 25

pytest-rest:
	$(BIN)/pytest -m "(slurm or bisect or not (train or browser)) and not long" --durations 25
