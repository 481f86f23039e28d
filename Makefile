# Everything runs in .venv, made on first use and reused afterwards.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
CODE := src tests benchmarks
STAMP := $(VENV)/.installed

.PHONY: help env browser demo test test-slow lint clean

help:
	@echo "make demo       set up and train a small model on the embedded images, in a few minutes"
	@echo "make test       set up, lint, type-check and run the tests"
	@echo "make test-slow  the tests left out of 'make test' for their length"
	@echo "make clean      remove the environment and caches"

env: $(STAMP)

$(STAMP): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	@touch $@

demo: env
	$(BIN)/saccade train --recipe quick

lint: env
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports

# A browser with its driver and the check of accessibility, for the tests of the pages.
browser:
	@sh tests/browser/setup.sh

# Processes that tests start read the modules' compiled code, also where a machine is set not to keep it.
test test-slow: export PYTHONDONTWRITEBYTECODE =
test: lint browser
	$(BIN)/pytest -n 2 --dist worksteal

test-slow: env browser
	$(BIN)/pytest -m slow

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
