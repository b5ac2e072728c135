# Every target sets up what it needs on a machine that has Python 3.11 and make.
# make run starts a broker; make test runs the tests; make help lists the rest.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
RUN    := $(VENV)/.installed
DEV    := $(VENV)/.installed-dev
FAST   := $(VENV)/.compiled
# Twice quiet: setuptools warns of folders beside an editable install, which are meant to be there.
PIP    := $(BIN)/python -m pip --quiet --quiet --disable-pip-version-check
PINNED := constraints.txt
FOLDERS := kernel protocol plugins client cli testing contrib
# As long as all the other tests together.
HALF   := tests/kernel tests/client tests/cli tests/plugins/ha tests/plugins/query tests/plugins/fault tests/adapters tests/celery tests/otel tests/campaign tests/arrow tests/grpc
INTEROP_HALF := $(patsubst %,tests/interop/%,allocate celery console filter grpc spark test_mqadmin.py test_spring.py test_store_both_ways.py)

.PHONY: help run fast fast-kernel fast-plugins lane-campaign test test-fast test-half test-other check types interop interop-half interop-other interop-rust spark-cluster engines campaign repeats explore simulate bench kernel-size figures constraints clean

help:            ## List the targets
	@grep -E '^[a-z-]+: .*##|^[a-z-]+:  *##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

run: $(FAST)   ## Start a broker with its embedded name server (broker.toml)
	@$(BIN)/verniermq broker --config broker.toml

# A broker works without it, and says which of the two it uses.
fast: $(RUN)   ## Compile the quick way of plain sends, as make run does, and fail without a C compiler
	@$(PIP) install -c $(PINNED) cython 'setuptools>=77'
	@VERNIERMQ_COMPILE=1 $(BIN)/python setup.py --quiet build_ext --inplace --parallel 2
	@touch $(FAST)

test: $(DEV)   ## Run the tests, half of them on each of two cores
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target test-half test-other

# With AGAIN=1 what failed runs once more, alone: one defect of the tests' own timing does not hide what the rest of a run shows.
PYTEST = $(BIN)/python -m pytest $(1) -o cache_dir=.pytest_cache/$(2)
TESTED = $(PYTEST) $(if $(AGAIN),|| (echo "Once more, alone, what failed among the others:" && $(PYTEST) --last-failed --lfnf=none))

test-half: $(DEV)
	@$(call TESTED,$(HALF),half)

test-other: $(DEV)
	@$(call TESTED,tests $(HALF:%=--ignore=%),other)

# The tests of kernel and plugins, those of crashes and power loss among them, once more on the compiled way, and a short part of its campaign.
# What runs no broker and no store has nothing that is compiled; copies (ha) that are waited for close the compiled way.
WITHOUT_BROKER := dispatch remoting test_clock.py test_config_load.py test_config_structure.py test_config_units.py \
	test_deadlines.py test_discovery.py test_hookcall.py test_host.py test_jsonfile.py test_maybe.py test_namesrv.py test_setup.py
test-fast: $(DEV) fast ## Run the tests of kernel and plugins, the client's codec and Arrow's columns on the compiled way
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target fast-kernel fast-plugins

fast-kernel: $(DEV)
	@$(call TESTED,tests/kernel $(WITHOUT_BROKER:%=--ignore=tests/kernel/%),fast-kernel)

fast-plugins: $(DEV)
	@$(call TESTED,tests/plugins --ignore=tests/plugins/ha tests/client/test_wire.py tests/client/test_parts.py \
		tests/client/test_quick.py tests/arrow/test_pairs.py tests/arrow/test_decode.py,fast-plugins)
	@$(BIN)/python -m tests.kernel.lane_campaign --rounds 1

check: $(DEV) build/types/verniermq  ## Lint, type-check, and check who imports whom
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

types: $(DEV) build/types/verniermq  ## Type-check alone
	@$(BIN)/mypy

# Most of these tests wait for other people's servers, so two run at a time. A server takes its time on a busy machine, and
# a test's patience ends; a defect fails twice.
interop: $(DEV) ## Drive a broker with the real Java, Go and Node clients
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target AGAIN=1 interop-half interop-other

interop-half: $(DEV)
	@$(call TESTED,$(INTEROP_HALF),interop-half)

interop-other: $(DEV)
	@$(call TESTED,tests/interop --ignore=tests/interop/test_rust.py $(INTEROP_HALF:%=--ignore=%),interop-other)

# Compiling the Rust client's crates takes as long as a third of the others' tests.
interop-rust: $(DEV) ## Drive a broker with the Rust client (wants cargo, and minutes)
	@$(BIN)/python -m pytest tests/interop/test_rust.py

# Minutes, root and five Javas: master, workers, driver and broker each in a network namespace. Results: bench/results/spark-cluster.jsonl
spark-cluster: $(DEV) ## Kill the executors of a Spark cluster on hosts of their own, and try Spark Connect (KILLS=6 SEED=7)
	@tests/interop/namespaces.sh
	@$(BIN)/python -m tests.interop.spark.on_hosts $(KILLS:%=--kills %) $(SEED:%=--seed %)

# Each has a Spark of its own below build, since no Spark has the jars of both. Results: bench/results/engines.jsonl
engines: $(DEV)  ## Read an export's Delta tables with Spark 4.2 and its Iceberg tables with Spark 4.1, and both with DuckDB
	@$(BIN)/python -m tests.interop.spark.engines

MINUTES ?= 10
KINDS   ?= all

campaign: $(DEV) ## Kill, fill, damage and attack brokers (MINUTES=10 KINDS=kill,disk SEED=7)
	@$(BIN)/python -m tests.campaign --minutes $(MINUTES) --kinds $(KINDS) $(SEED:%=--seed %)

# bench/results/repeats.json tells how often each of them ran; the next call goes on from there. They wait more than they work: four at a time.
repeats: $(DEV) ## Run the tests that use threads, processes or clocks 100 times (MINUTES=60 ONLY=tests/client)
	@nice -n 19 $(BIN)/python -m tests.repeats --minutes $(MINUTES) $(ONLY:%=--only %)

# 2 messages, 2 terms and no power cut are 83,084 worlds; 3 and 3 are 2,755,537, which takes 10 minutes and about 1 GB. docs/replication.md lists all.
explore: $(DEV) ## Look at every world of the rules of replication (MESSAGES=2 TERMS=2 CUTS=0 MORE="--synchronous --hand-overs")
	@$(BIN)/python -m tests.plugins.ha.explore --messages $(or $(MESSAGES),2) --terms $(or $(TERMS),2) --power-cuts $(or $(CUTS),0) $(MORE)

simulate: $(DEV) ## Run histories of replicas in a simulated world, by seeds (HISTORIES=10000 FIRST=1 RECORD=--record)
	@$(BIN)/python -m tests.plugins.ha.simulated --histories $(or $(HISTORIES),10000) --first $(or $(FIRST),1) $(RECORD)

ROUNDS ?= 100

lane-campaign: $(DEV) fast ## Compare the compiled way with Python's, byte by byte (ROUNDS=100 SEED=7)
	@$(BIN)/python -m tests.kernel.lane_campaign --rounds $(ROUNDS) $(SEED:%=--seed %) --record

bench: $(DEV)  ## Measure side by side with Apache's broker (BENCH=--quick: under 3 minutes)
	@$(BIN)/python bench/apache.py $(BENCH)

kernel-size:     ## Count the kernel's code lines (SIZE="--check --max-lines 6500" compares)
	@$(PYTHON) bench/kernel_size.py $(SIZE)

figures: $(DEV)  ## Count lines, files, cycles, hooks with their users, functions on the way of a send
	@$(BIN)/python bench/structure.py
	@$(BIN)/python bench/way.py

# A clean environment beside the one in use: the newest versions that pyproject.toml allows become the pinned ones.
constraints:     ## Renew constraints.txt with the newest versions
	@rm -rf build/newest && $(PYTHON) -m venv build/newest
	@build/newest/bin/python -m pip --quiet --quiet --disable-pip-version-check install -e '.[dev,spark]'
	@head -n 1 $(PINNED) > build/newest/$(PINNED)
	@build/newest/bin/python -m pip --disable-pip-version-check freeze --exclude-editable >> build/newest/$(PINNED)
	@mv build/newest/$(PINNED) $(PINNED) && rm -rf build/newest

clean:           ## Remove everything that make created
	rm -rf $(VENV) build dist *.egg-info kernel/accel/*.so kernel/commitlog/*.so plugins/query/*.so client/*.so contrib/arrow/*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Tried once for each version of the sources. Without a compiler, without Python's headers or without a way to get Cython
# everything works as well, in plain Python: COMPILE= (nothing behind the sign) does not even try.
COMPILE ?= $(shell command -v $(CC))
$(FAST): setup.py $(shell find kernel plugins client contrib -name '*.pyx') | $(RUN)
	@mkdir -p build
	@if test -n "$(COMPILE)"; then \
		echo "Compiling the quick way of plain sends (once, some seconds) ..."; \
		$(MAKE) --no-print-directory fast > build/fast.log 2>&1 \
			|| echo "It could not be compiled; the broker works as well, in plain Python. The reason is in build/fast.log"; \
	fi
	@touch $@

# To run a broker takes a few small packages; to test it takes Spark and the tools too.
$(RUN): pyproject.toml setup.py $(PINNED) | $(BIN)/python
	@echo "Installing VernierMQ into $(VENV) ..."
	@$(PIP) install -c $(PINNED) -e .
	@touch $@

$(DEV): pyproject.toml setup.py $(PINNED) | $(BIN)/python
	@echo "Installing VernierMQ and its tools into $(VENV) (Spark is large) ..."
	@$(PIP) install -c $(PINNED) -e '.[dev,spark]'
	@touch $@ $(RUN)

$(BIN)/python:
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --upgrade pip

# Type checkers do not follow an editable install: these links show them the folders as verniermq.*
build/types/verniermq: Makefile
	@mkdir -p $@
	@for folder in $(FOLDERS); do ln -sfn ../../../$$folder $@/$$folder; done
	@touch $@
