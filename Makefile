# Everything runs in .venv, made on first use and reused afterwards.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
CODE := src tests benchmarks
STAMP := $(VENV)/.installed

.PHONY: help env demo test test-slow lint clean

help:
	@echo "make demo       set up, list the models and time one against a timm peer"
	@echo "make test       set up, lint, type-check and run the tests"
	@echo "make test-slow  the tests left out of 'make test' for their length"
	@echo "make clean      remove the environment and caches"

env: $(STAMP)

$(STAMP): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	@touch $@

demo: env
	$(BIN)/saccade models
	$(BIN)/saccade benchmark --model glnet_stl --peer swin_tiny_patch4_window7_224 --batch-size 1

lint: env
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/pytest -n 2

test-slow: env
	$(BIN)/pytest -m slow

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
