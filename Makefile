# `make demo` and `make test` work in a fresh clone with nothing but Python 3.11 and make.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
TEST_ARGS ?=

SEEDS ?= 200

.PHONY: help setup setup-demo demo test crashes fuzz lint format bench clean

help:           ## what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

setup:          ## everything for development, in .venv; does nothing when nothing has changed
	@PYTHON="$(PYTHON)" VENV="$(VENV)" bash .ci/install dev

setup-demo:     ## only what a user installs
	@PYTHON="$(PYTHON)" VENV="$(VENV)" bash .ci/install

demo: setup-demo        ## a run that survives two kill -9, on servers that start by themselves
	@$(BIN)/safepoint demo

# A process for each group: signal handlers, Celery's pools and settings that one leaves behind are not another's.
# They run side by side, so the longest come first; one of them is all that is in no other. exec: a signal to make reaches it.
MATRIX := tests/chaos/test_crash_matrix.py
# Deaths over effects, which share what they have started.
EFFECTS := tests/chaos/test_effect_matrix.py tests/chaos/test_effect_request.py tests/chaos/test_effect_fuzz.py tests/chaos/test_compensation.py
OWN := tests/chaos tests/cli tests/celery tests/ledger tests/recovery tests/tasks
GROUPS := "tests/ledger tests/recovery tests/tasks" "tests/chaos $(MATRIX:%=--ignore=%) $(EFFECTS:%=--ignore=%)" \
	"tests/cli" "tests/celery" "tests $(OWN:%=--ignore=%)" "$(EFFECTS)" "$(MATRIX)"

test: setup     ## the tests; TEST_ARGS="-k name" picks some
ifeq ($(strip $(TEST_ARGS)),)
	@exec $(BIN)/python .ci/groups.py $(GROUPS)
else
	@exec $(BIN)/pytest $(TEST_ARGS)
endif

crashes: setup  ## all that kills processes once more, with either pool, by message and in place
	@for pool in prefork threads; do for slice in 0 5; do \
		echo "$$pool, inline_slice $$slice"; \
		SAFEPOINT_TEST_POOL=$$pool SAFEPOINT_LANES__ONLINE__INLINE_SLICE=$$slice SAFEPOINT_LANES__FRONT__INLINE_SLICE=$$slice \
			SAFEPOINT_LANES__ABROAD__INLINE_SLICE=$$slice $(BIN)/pytest -q tests/chaos || exit 1; \
	done; done

fuzz: setup     ## runs with effects that meet kills, stops, timeouts and cancels; SEEDS=40-59 picks some
	@exec $(BIN)/python tests/chaos/fuzz_effects.py --seeds $(SEEDS)

lint: setup     ## every check that is not a test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

format: setup   ## what the formatter and the linter can mend by themselves
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup    ## ours beside its peers, into bench/RESULTS.md; QUICK=1 prints a little of it within five minutes
	@exec $(BIN)/python bench

clean:          ## everything that these targets have made
	rm -rf $(VENV) bench/.peers build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
