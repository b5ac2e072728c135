# Every target sets up what it needs on a machine that has Python 3.11 and make.
# make run starts a broker; make test runs the tests; make help lists the rest.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
RUN    := $(VENV)/.installed
DEV    := $(VENV)/.installed-dev
# Twice quiet: setuptools warns of folders beside an editable install, which are meant to be there.
PIP    := $(BIN)/python -m pip --quiet --quiet --disable-pip-version-check
FOLDERS := kernel plugins client contrib

.PHONY: help run test test-kernel test-rest check interop interop-one interop-two interop-again bench clean

help:            ## List the targets
	@grep -E '^[a-z]+: .*##|^[a-z]+:  *##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

run: $(RUN)    ## Start a broker with its embedded name server (broker.toml)
	@$(BIN)/verniermq broker --config broker.toml

test: $(DEV)   ## Run the tests, half of them on each of two cores
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target test-kernel test-rest

test-kernel: $(DEV)
	@$(BIN)/python -m pytest tests/kernel tests/client -o cache_dir=.pytest_cache/kernel

test-rest: $(DEV)
	@$(BIN)/python -m pytest tests --ignore tests/kernel --ignore tests/client -o cache_dir=.pytest_cache/rest

check: $(DEV) build/types/verniermq  ## Lint, type-check, and check who imports whom
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

# Other people's servers take their time to start and to stop, so half of the tests run beside the other half. On a busy
# machine a test's patience may end all the same, so what failed is tried once more, alone; a defect fails twice.
INTEROP_LONG := $(addprefix tests/interop/,spark test_python_client.py test_store_both_ways.py test_kinds_txn_pop.py)
INTEROP_ONE  := $(BIN)/python -m pytest $(INTEROP_LONG) -o cache_dir=.pytest_cache/interop-one
INTEROP_TWO  := $(BIN)/python -m pytest tests/interop $(INTEROP_LONG:%=--ignore=%) -o cache_dir=.pytest_cache/interop-two
AGAIN        := --last-failed --lfnf=none

interop: $(DEV) ## Drive a broker with the real Java, Go and Node clients
	@rm -f build/interop-*.failed
	@$(MAKE) --no-print-directory --jobs=2 --keep-going --output-sync=target interop-one interop-two \
		|| (echo "Once more, alone, what failed among the others:" && $(MAKE) --no-print-directory interop-again)

interop-one: $(DEV)
	@$(INTEROP_ONE) || (mkdir -p build && touch build/$@.failed && false)

interop-two: $(DEV)
	@$(INTEROP_TWO) || (mkdir -p build && touch build/$@.failed && false)

interop-again: $(DEV)
	@ls build/interop-*.failed >/dev/null
	@test ! -e build/interop-one.failed || $(INTEROP_ONE) $(AGAIN)
	@test ! -e build/interop-two.failed || $(INTEROP_TWO) $(AGAIN)

bench: $(DEV)  ## Measure side by side with Apache's broker (BENCH=--quick: under 3 minutes)
	@$(BIN)/python bench/apache.py $(BENCH)

clean:           ## Remove everything that make created
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# To run a broker takes a few small packages; to test it takes Spark and the tools too.
$(RUN): pyproject.toml setup.py | $(BIN)/python
	@echo "Installing VernierMQ into $(VENV) ..."
	@$(PIP) install -e .
	@touch $@

$(DEV): pyproject.toml setup.py | $(BIN)/python
	@echo "Installing VernierMQ and its tools into $(VENV) (Spark is large) ..."
	@$(PIP) install -e '.[dev,spark]'
	@touch $@ $(RUN)

$(BIN)/python:
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --upgrade pip

# Type checkers do not follow an editable install: these links show them the folders as verniermq.*
build/types/verniermq: Makefile
	@mkdir -p $@
	@for folder in $(FOLDERS); do ln -sfn ../../../$$folder $@/$$folder; done
	@touch $@
