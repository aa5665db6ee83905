# Every task of this repository. `make` alone lists them; each target does its own set-up.
SHELL := /bin/sh
.DEFAULT_GOAL := help
# uv then uses the machine's certificates, which it needs behind a company's proxy.
export UV_SYSTEM_CERTS := 1
# Many containers set it. Every process would then compile all its imports, which takes longer than most tests.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.locked-$(shell cat .lock/uv.txt .lock/dev.txt | cksum | cut -d" " -f1)
SAM_BIN := .local/sam/bin
PYTEST := $(BIN)/pytest -q
# Exists only where the deployed Python version is installed (DEPLOYED_PYTHON names it).
DEPLOYED := .venv-deployed/bin
# Processes of a suite: more than cores, because some of the time goes into waiting for a rate or a time-out.
WORKERS = 4
# Runs a suite, runs its failed tests once more, and records which they were.
TRY_TWICE = $(dir $(firstword $(PYTEST)))python -m tests.support.second_try run

.PHONY: help walk house run demo smoke clean test deployed lint weekly format types unit integration workflow faults faults-all mutants soak fuzz corpora exact e2e clients build-test build packages deploy bench browser test-browser screenshots lock lock-check newcomer setup compiled

help:  ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

run: $(STAMP)  ## the whole system on this machine, until Ctrl-C
	@$(BIN)/python -m local run

demo: $(STAMP)  ## the same, with a tour of what it does; exits 0 if all went well
	@$(BIN)/python -m local demo

smoke: $(STAMP)  ## one of everything against API_URL (with KEY, else the key of make deploy), or a local cloud
	@$(BIN)/python -m local smoke

clean:  ## delete the local cloud and its state
	@if [ -x $(BIN)/python ]; then $(BIN)/python -m local clean; fi
	@rm -rf .local/pytest .local/compiled .aws-sam

# In steps. `sam build` copies the sources, so no test may write compiled modules among them meanwhile. Some unit tests
# measure rates, so nothing runs beside them. Chromium and the deployed stack answer within limits of time, so the
# suites that only compute do not run beside those that use them.
test: $(STAMP)  ## everything that must hold; ends with the time of each suite and the tests that needed a second try
	@$(BIN)/python -m tests.support.second_try forget; $(BIN)/python -m tests.support.suite_times forget
	@ended=0; $(BIN)/python -m tests.support.suite_times watch & watcher=$$!; \
	  $(SIDE_BY_SIDE) deployed timed-lint timed-types timed-build-test compiled || ended=$$?; \
	  $(SIDE_BY_SIDE) timed-unit || ended=$$?; \
	  $(SIDE_BY_SIDE) timed-integration || ended=$$?; \
	  $(SIDE_BY_SIDE) timed-faults timed-workflow || ended=$$?; \
	  $(SIDE_BY_SIDE) timed-browser timed-e2e || ended=$$?; \
	  kill $$watcher 2>/dev/null; \
	  $(BIN)/python -m tests.support.suite_times report; \
	  $(BIN)/python -m local.deployed say; $(BIN)/python -m tests.support.second_try say; exit $$ended

SIDE_BY_SIDE = $(MAKE) --no-print-directory --keep-going -j 3 --output-sync=target

timed-%:
	@$(BIN)/python -m tests.support.suite_times run $* $(MAKE) --no-print-directory $*

setup: $(STAMP)  ## .venv with the locked dependencies

$(STAMP):
	@python=$$(for p in $(PYTHON) python3 python3.13 python3.12 python3.11; do \
	    if $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo $$p; break; fi; done); \
	  if [ -z "$$python" ]; then echo "Python 3.11 or later is needed and none is on PATH." >&2; \
	    echo "  → install it, or name one: PYTHON=/path/to/python3 make run" >&2; exit 1; fi; \
	  [ -x $(BIN)/python ] || $$python local/progress.py "an environment for Python in $(VENV)" 5 $$python -m venv $(VENV) || { echo "  → python's venv module is needed (Debian: apt install python3-venv)" >&2; exit 1; }
	@$(BIN)/python local/progress.py "uv, which installs the rest" 5 \
	    $(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r .lock/uv.txt \
	  && $(BIN)/python local/progress.py "the locked dependencies in $(VENV)" 30 \
	    $(BIN)/uv pip install --python $(BIN)/python --require-hashes -r .lock/dev.txt \
	  && TMPDIR=$(CURDIR)/$(VENV) $(BIN)/uv pip install -q --python $(BIN)/python --no-deps -e . \
	  || { echo "The dependencies could not be installed." >&2; echo "  → check that PyPI (or PIP_INDEX_URL) is reachable, then run make again" >&2; exit 1; }
	@rm -f $(VENV)/.locked-* && touch $@

lint: $(STAMP) lock-check  ## style, imports, template
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check -q . || { echo "  → make format" >&2; exit 1; }
	@mkdir -p .local && $(BIN)/lint-imports >.local/imports.txt 2>&1 || { cat .local/imports.txt; exit 1; }
	@$(BIN)/cfn-lint template.yaml --regions us-east-1 cn-north-1 us-gov-west-1

# Other people's tools, in an environment of their own: their dependencies are not ours.
CHECKS := .local/checks/.locked-$(shell cat .lock/checks.txt | cksum | cut -d" " -f1)
$(CHECKS): | $(STAMP)
	@echo "  … installing bandit, checkov and others into .local/checks"
	@$(BIN)/uv venv -q --clear --python $(BIN)/python .local/checks && $(BIN)/uv pip install -q --python .local/checks/bin/python --require-hashes -r .lock/checks.txt
	@touch $@

weekly: $(STAMP) $(CHECKS)  ## bandit, checkov, the workflows' schema, pip-audit, sequences of calls by schemathesis
	@$(BIN)/python -m tests.checks
	@$(PYTEST) tests/checks

format: $(STAMP)  ## fix the style
	@$(BIN)/ruff check -q --fix . ; $(BIN)/ruff format -q .

types: $(STAMP)  ## mypy, strict
	@$(BIN)/mypy
	@$(BIN)/mypy --python-version 3.10 -p tidegate_client  # the oldest it knows; tests/build runs the client on 3.9

# Unit and integration tests run on the deployed Python version where it is installed.
deployed: $(STAMP)
	@$(BIN)/python -m local.deployed make

unit: $(STAMP) deployed  ## pure rules, the template, single adapters
	@$(TRY_TWICE) -n $(WORKERS) --dist worksteal tests/unit

# Most of what their agents, swarms, batches and businesses do is waiting.
unit integration: WORKERS = 6
unit integration compiled: PYTEST = $(shell [ -x $(DEPLOYED)/pytest ] && echo $(DEPLOYED) || echo $(BIN))/pytest -q
integration: $(STAMP) deployed  ## services and routes on moto
	@$(TRY_TWICE) -n $(WORKERS) --dist worksteal tests/integration

# In a fresh clone, each process of a suite would compile the tests and the libraries for itself. Compiled modules are
# kept outside the sources, which `sam build` copies.
unit integration compiled: export PYTHONPYCACHEPREFIX := $(CURDIR)/.local/compiled
compiled: $(STAMP) deployed
	@$(PYTEST) --collect-only tests/unit tests/integration >/dev/null 2>&1 || true

workflow: $(STAMP)  ## the state machines on moto
	@$(TRY_TWICE) -n 2 --dist worksteal tests/workflow

faults: $(STAMP)  ## any AWS call fails, any function dies or is late
	@$(TRY_TWICE) -n 2 --dist worksteal tests/faults

faults-all: $(STAMP)  ## the same at every AWS call and in every mode, for some hours; continues where it stopped
	@$(BIN)/python -m tests.faults --jobs 2
	@EVERY_POINT=1 $(PYTEST) -n 2 --timeout 3600 tests/integration/exports/ranges tests/integration/web tests/integration/distribution

walk: $(STAMP)  ## how many files one download, export, ingest and batch run through; V=-v lists them
	@$(BIN)/python -m tests.house walk $(V)

house: $(STAMP)  ## modules, lines, corridors and words with two meanings; V=-v lists them
	@$(BIN)/python -m tests.house house $(V)

mutants: $(STAMP)  ## deliberate faults in the product, each of which the tests must notice; SAMPLE=60 SEED=7: random ones; ONLY=path NEAR=1
	@$(BIN)/python -m tests.mutants$(if $(SAMPLE),.sample $(SAMPLE) --seed $(or $(SEED),1) $(ONLY:%=--only %) $(if $(NEAR),--near))

soak: $(STAMP)  ## everything at once under faults, held against a ledger outside; MINUTES=10 SEED=1
	@$(BIN)/python -m tests.soak --minutes $(or $(MINUTES),10) --seed $(or $(SEED),1)

fuzz: $(STAMP)  ## made-up requests, rows and manifests by the thousand, for an hour
	@FUZZ_EXAMPLES=12000 $(PYTEST) -n 2 --timeout 7200 tests/unit/ingest/test_any_manifest.py tests/unit/exports/rendering/test_template_properties.py tests/unit/exports/rendering/test_any_cells.py tests/unit/exports/rendering/test_csv_writer.py tests/unit/exports/test_paging.py
	@FUZZ_EXAMPLES=12000 $(PYTEST) -n 2 --timeout 7200 tests/integration/web/test_any_odd_value.py tests/integration/web/test_odd_input.py
	@FUZZ_EXAMPLES=300 $(PYTEST) -n 2 --timeout 7200 tests/integration/exports/ranges/test_random_sources.py
	@FUZZ_EXAMPLES=300 $(PYTEST) --timeout 7200 tests/e2e/test_fuzz.py

corpora: $(STAMP)  ## the feeds that public parsers ship for their tests, fetched and read
	@$(BIN)/python -m tests.corpora

exact: $(STAMP)  ## a batch whose runners are killed, against a business with its own ledger; ARGS="--items 1000000 --kills 50"
	@$(BIN)/python -m tests.exact $(ARGS)

e2e: $(STAMP)  ## over HTTP against the deployed stack
	@$(TRY_TWICE) -n 3 --dist loadfile --no-loadscope-reorder tests/e2e

clients: $(STAMP)  ## the examples in PHP, Go, Java and TypeScript against the deployed stack, where they are installed
	@$(PYTEST) -rs tests/e2e/test_languages.py

build-test: $(STAMP) $(SAM_BIN)/sam  ## every handler from the built artifacts alone
	@$(BIN)/python -m local.sam build-here
	@$(PYTEST) tests/build

build: $(STAMP) $(SAM_BIN)/sam  ## sam build of every function and layer, and the client's wheel
	@$(BIN)/python -m local.sam build
	@$(BIN)/python -m local.client_wheel

packages: $(STAMP)  ## the agent for hosts: .deb, .rpm and a single file; TRY=1 installs, upgrades and removes them too
	@$(BIN)/python -m local.packages
	@if [ -n "$(TRY)" ]; then $(BIN)/python -m tests.build.try_packages; fi

deploy: $(STAMP) $(SAM_BIN)/sam  ## sam build and sam deploy, to AWS; PARAMS="Name=value …" sets parameters; DRY_RUN=yes only checks; BREAK_GLASS=yes: no alarm stops it
	@PARAMS='$(PARAMS)' $(BIN)/python -m local.sam deploy

$(SAM_BIN)/sam: .lock/sam.txt | $(STAMP)
	@$(BIN)/uv venv -q --clear --python $(BIN)/python .local/sam && $(BIN)/python local/progress.py "aws-sam-cli in .local/sam" 20 \
	  $(BIN)/uv pip install --python .local/sam/bin/python --require-hashes -r .lock/sam.txt
	@touch $@

# Peers that the bench measures beside the product, in a folder of their own: nothing else may come to need them.
PEERS := .local/peers/.locked-$(shell cat .lock/bench.txt | cksum | cut -d" " -f1)
$(PEERS): | $(STAMP)
	@rm -rf .local/peers && mkdir -p .local/peers
	@$(BIN)/uv pip install -q --python $(BIN)/python --target .local/peers --require-hashes -r .lock/bench.txt \
	  || echo "  no libtorrent for this machine: BitTorrent is not measured"
	@touch $@

bench: $(STAMP) $(PEERS)  ## measurements against their bars, into tests/bench/README.md; QUICK=1 for about seven minutes
	@QUICK=$(QUICK) POWERTOOLS_LOG_LEVEL=CRITICAL $(BIN)/python -m tests.bench

browser: $(STAMP)  ## the console in Chromium, where there is one
	@if command -v chromium >/dev/null || command -v google-chrome >/dev/null; then $(TRY_TWICE) -n 2 --dist loadfile tests/browser; \
	  else echo "  no Chromium here: the console is not tested (make test-browser installs it)"; fi

test-browser:  ## the same, installing Debian's Chromium first
	@command -v chromium >/dev/null || { apt-get update -q && apt-get install -q -y chromium fonts-noto-cjk; }
	@$(MAKE) browser

screenshots: $(STAMP)  ## the README's pictures, from the console at work
	@$(BIN)/python -m tests.browser.screenshots

lock: $(STAMP)  ## pyproject.toml changed: lock again
	@$(BIN)/python -m local.lock write

lock-check: $(STAMP)
	@$(BIN)/python -m local.lock check

newcomer:  ## a fresh clone in an empty environment, timed
	@sh tests/newcomer.sh
