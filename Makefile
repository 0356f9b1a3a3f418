# `make demo` and `make test` work in a fresh clone with nothing but Python 3.11 and make.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
TEST_ARGS ?=

.PHONY: help setup setup-demo demo test lint format bench clean

help:           ## what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

setup:          ## everything for development, in .venv; does nothing when nothing has changed
	@PYTHON="$(PYTHON)" VENV="$(VENV)" bash .ci/install dev

setup-demo:     ## only what a user installs
	@PYTHON="$(PYTHON)" VENV="$(VENV)" bash .ci/install

demo: setup-demo        ## a run that survives two kill -9, on servers that start by themselves
	@$(BIN)/safepoint demo

# A process for each group: signal handlers, Celery's pools and settings that one leaves behind are not another's.
GROUPS := "tests/unit tests/typing tests/testing tests/docs tests/examples tests/deploy tests/config tests/packaging tests/model" \
	"tests/ledger tests/recovery tests/tasks" "tests/cli" "tests/celery" "tests/chaos"

test: setup     ## the tests; TEST_ARGS="-k name" picks some
ifeq ($(strip $(TEST_ARGS)),)
	@for group in $(GROUPS); do $(BIN)/pytest $$group || exit 1; done
else
	@$(BIN)/pytest $(TEST_ARGS)
endif

lint: setup     ## every check that is not a test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

format: setup   ## what the formatter and the linter can mend by themselves
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup    ## measurements, printed as tables
	$(BIN)/python bench

clean:          ## everything that these targets have made
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
