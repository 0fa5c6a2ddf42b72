# Everything runs in .venv, made on first use from pinned versions (constraints.txt).
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
TRACES ?= $(or $(WARMROUTE_TRACES),../shared/traces)
export WARMROUTE_TRACES := $(TRACES)

.PHONY: help demo test bench-live bench-outage lint format lock clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(VENV)/.installed ## round robin against warmroute on a slice of a trace, under 3 minutes
	$(BIN)/warmroute bench demo

test: lint ## what CI runs: linters, types, all tests
	$(BIN)/python -m pytest -q

lint: $(VENV)/.installed ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench-live: $(VENV)/.installed ## the demo at full size: two loads, two policies, about 30 minutes
	$(BIN)/warmroute bench live --resume

bench-outage: $(VENV)/.installed ## NATS killed in the middle of a run, 20 s, about 2 minutes
	$(BIN)/warmroute bench outage --policies least_prefill round_robin

format: $(VENV)/.installed ## rewrite the code as the linter wants it
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: ## renew constraints.txt from a fresh environment
	rm -rf out/lock && $(PYTHON) -m venv out/lock
	out/lock/bin/python -m pip install --quiet -e '.[dev]'
	out/lock/bin/python -m pip freeze --exclude-editable > constraints.txt
	rm -rf out/lock

clean: ## results and caches; the environment stays
	rm -rf out build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
