# Sets up and runs everything on a machine that has Python 3.11 or newer, git and make. `make help` lists the targets.

SHELL := /bin/sh
.DEFAULT_GOAL := help

ENGINE_PORT ?= 8000
ENGINE_FLAGS ?=
PYTEST_FLAGS ?=
TEST_PROCESSES ?= 2
PINS_FLAGS ?=
export ENGINE_PORT ENGINE_FLAGS ENGINE_URL ENGINE_API_KEY ENGINE_HOME

BIN := .venv/bin
READY := .venv/ready
COMPILED := .cache/compiled
# Who shares an engine stays in one of the processes: tests/conftest.py.
PYTEST := $(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) --dist loadscope $(PYTEST_FLAGS)
COMPILE := .cache/pins/bin/uv pip compile $(PINS_FLAGS) --quiet --universal --python-version 3.11 \
	--generate-hashes --no-annotate --custom-compile-command "make pins"

.PHONY: help run test check soak static cover compiled installed engine engine-stop pins

help:
	@echo 'make run           set up, and serve on 127.0.0.1:8080 (ops on 127.0.0.1:9090) in front of ENGINE_URL=http://host:port,'
	@echo '                   or of the embedded engine, an emulator of vLLM on ENGINE_PORT=8000 with ENGINE_FLAGS'
	@echo 'make test          set up, and run every check and every test, those on the real vLLM too, in'
	@echo '                   TEST_PROCESSES=2 processes at once (0: in one, for -x, --pdb and the like in PYTEST_FLAGS)'
	@echo 'make check         the quick gate: format, lint, types, layering, unit and property tests'
	@echo 'make cover         every branch of the core is reached by its unit tests, or this fails'
	@echo 'make compiled      the packages with the core compiled to C, in $(COMPILED), and the tests of the core on them;'
	@echo '                   PYTHONPATH=$(COMPILED) .venv/bin/python -P FILE runs a script on them'
	@echo 'make soak          ten minutes of overload by callers and engines that do everything wrong; SOAK_S=60 is one'
	@echo 'make engine        install vLLM for CPU (about 2.5 GB, kept in ENGINE_HOME or the user'\''s cache) and start it'
	@echo '                   with a tiny model on ENGINE_PORT=8000; ENGINE_FLAGS="--max-num-seqs 64 ..." are vLLM'\''s own'
	@echo 'make engine-stop   stop it'
	@echo 'make pins          write the pinned requirements anew; PINS_FLAGS=--upgrade takes newer versions'

run: $(READY)
	@$(BIN)/python -m deploy.run

# What downloads goes beside what computes. The last line is pytest's own.
test: $(READY)
	@$(MAKE) --no-print-directory --jobs 2 installed static cover compiled
	$(PYTEST)

check: static cover
	$(PYTEST) tests/unit tests/property tests/tidy

soak: $(READY)
	SOAK_S=$${SOAK_S:-600} SOAK_SHOWN=$${SOAK_SHOWN:-/dev/stderr} $(BIN)/python -m pytest $(PYTEST_FLAGS) --capture=no tests/soak

static: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The unit tests of the core reach every branch of it, whatever the random ones draw; fails below 100 %.
cover: $(READY)
	$(BIN)/python -m pytest --quiet --no-header --cov --cov-report=term tests/unit/core

# What is shipped compiled behaves as its source does.
ifneq ($(shell command -v cc),)
compiled: $(COMPILED)/ready
	PYTHONPATH=$(COMPILED) $(BIN)/python -P -m gateway --version | grep 'compiled core'
	$(BIN)/python -m pytest --quiet --no-header -o pythonpath='$(COMPILED) .' tests/unit/core tests/simulation \
		tests/unit/bench/test_bench_simulate.py tests/unit/bench/test_emulator_parts.py
else
compiled:
	@echo 'compiled: left out, since there is no C compiler here (on Debian: apt install gcc python3-dev)'
endif

$(COMPILED)/ready: $(READY) setup.py $(wildcard $(shell git ls-files gateway bench policies))
	@rm -rf $(COMPILED)
	GATEWAY_COMPILED=1 $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
		--target $(COMPILED) .
	@touch $@

installed: $(READY)
	$(BIN)/python -m deploy.engine install

engine: $(READY)
	@$(BIN)/python -m deploy.engine start --port $(ENGINE_PORT) $(ENGINE_FLAGS)

engine-stop: $(READY)
	@$(BIN)/python -m deploy.engine stop

$(READY): deploy/requirements/dev.txt pyproject.toml deploy/setup.sh
	@sh deploy/setup.sh .venv deploy/requirements/dev.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(READY)

# `uv` writes the pins and nothing else needs it. What it writes names no package index.
pins:
	@sh deploy/setup.sh .cache/pins deploy/requirements/pins.txt
	$(COMPILE) deploy/requirements/pins.in -o deploy/requirements/pins.txt
	$(COMPILE) pyproject.toml --extra fast --extra tracing -o deploy/requirements/runtime.txt
	$(COMPILE) pyproject.toml --extra fast --extra bench --extra tracing --group dev deploy/requirements/build.in \
		--constraint deploy/requirements/runtime.txt -o deploy/requirements/dev.txt
	$(COMPILE) deploy/engine/requirements.in --excludes deploy/engine/excluded.in -o deploy/engine/requirements.txt
