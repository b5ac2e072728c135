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
# As long as all the other tests together.
HALF   := tests/kernel tests/client tests/plugins/query tests/plugins/fault

.PHONY: help run test test-half test-other check interop bench clean

help:            ## List the targets
	@grep -E '^[a-z]+: .*##|^[a-z]+:  *##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

run: $(RUN)    ## Start a broker with its embedded name server (broker.toml)
	@$(BIN)/verniermq broker --config broker.toml

test: $(DEV)   ## Run the tests, half of them on each of two cores
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target test-half test-other

test-half: $(DEV)
	@$(BIN)/python -m pytest $(HALF) -o cache_dir=.pytest_cache/half

test-other: $(DEV)
	@$(BIN)/python -m pytest tests $(HALF:%=--ignore=%) -o cache_dir=.pytest_cache/other

check: $(DEV) build/types/verniermq  ## Lint, type-check, and check who imports whom
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

# Other people's servers take their time on a busy machine, and a test's patience ends; a defect fails twice.
INTEROP := $(BIN)/python -m pytest tests/interop -o cache_dir=.pytest_cache/interop

interop: $(DEV) ## Drive a broker with the real Java, Go and Node clients
	@$(INTEROP) || (echo "Once more, alone, what failed among the others:" && $(INTEROP) --last-failed --lfnf=none)

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
