# One virtual environment, made once; every target sets up what it needs.
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
READY := $(VENV)/ready
TORCH := torch==2.13.0

.DEFAULT_GOAL := help
.PHONY: help setup demo test check bench pictures format clean

help: ## Show these lines
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

setup: $(READY) ## Make the virtual environment

$(READY): pyproject.toml Makefile
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]'
	touch $(READY)

demo: $(READY) ## Build the fixtures and look at the result
	rm -rf out
	$(BIN)/dagpack build fixtures/agents out
	$(BIN)/dagpack stats out
	$(BIN)/dagpack show out --first-row 5800 --rows 24
	$(BIN)/dagpack verify out
	rm -rf out1k
	$(BIN)/dagpack pack out out1k --seq-len 1024 --on-long split
	$(BIN)/dagpack train --shards out1k --run out1k/run --width 64 --heads 2 --feed-forward 128 --layers 2 \
		--learning-rate 3e-3 --batch-size 4

test: $(READY) ## Run every test
	$(BIN)/python -m pytest -n auto --quiet

check: $(READY) ## Lint, types, format and tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n auto --quiet

bench: $(READY) ## Print ratios against named alternatives on the same data
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[bench]'
	$(BIN)/python -m tests.bench

pictures: $(READY) ## Draw the pictures of the README again
	$(BIN)/python -m tests.pictures

format: $(READY) ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## Remove everything that was made here
	rm -rf $(VENV) out out1k .bench .mypy_cache .pytest_cache .ruff_cache .hypothesis
